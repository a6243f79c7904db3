#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs a command where there is RDMA, on any machine: in one or two virtual machines with Debian's kernel, whose
# soft-RoCE device (rdma_rxe) the host's own libibverbs drives. QEMU emulates the processors, so neither KVM nor modules
# of the host's kernel are needed; programs that compute much run many times slower.
#
#   rdma_vm.sh [--nodes 1|2] [--mtu BYTES] [--seconds N] -- COMMAND [ARG...]
#
# COMMAND runs as root on every node, at the same time, with the host's files below / (read-only; /run may be written),
# in the folder that this was called from. It finds NODE (0, 1), NODES and ADDRESS (of node 0) in its environment; the
# device is rxe0 on the interface eth0. A node has two processors, or one when there are two nodes.
# Exit code: the command's, of the first node where it is not 0; 77 when there can be no such machine here, with a line
# that says why; 124 after N seconds (default 240); 125 when a machine ended by itself.
# The kernel is downloaded once (apt-get download, nothing is installed) and kept below ~/.cache/mori_ep.
set -uo pipefail

nodes=1 mtu=9000 seconds=240
while [[ ${1-} == --* ]]; do
  case $1 in
    --nodes) nodes=$2 ;;
    --mtu) mtu=$2 ;;
    --seconds) seconds=$2 ;;
    --) shift && break ;;
    *) echo "rdma_vm: unknown option $1" >&2 && exit 2 ;;
  esac
  shift 2
done
(($#)) && [[ $nodes == [12] ]] || { sed -n '3,17s/^# \{0,1\}//p' "$0" >&2 && exit 2; }

skip() { echo "rdma_vm: skipped: $*" && exit 77; }

# ---- What it needs.
PATH=$PATH:/usr/sbin:/sbin
[[ $(uname -m) == x86_64 ]] || skip "it knows x86-64 alone"
for tool_of in qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod rdma:iproute2 \
  setpriv:util-linux flock:util-linux; do
  command -v "${tool_of%:*}" >/dev/null || skip "no ${tool_of%:*}: apt-get install ${tool_of#*:}"
done
! ldd "$(command -v busybox)" &>/dev/null || skip "busybox is not static: apt-get install busybox-static"
[[ -n $(compgen -G '/usr/lib/*/libibverbs/librxe-*.so') ]] || skip "no librxe: apt-get install ibverbs-providers"

# ---- The kernel, unpacked. Debian's cloud kernel lacks rdma_rxe and 9p; the package linux-image-amd64 names the other.
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/mori_ep/rdma_vm
mkdir -p "$cache" || skip "cannot write $cache"
fetch_kernel() {
  local package work=$cache/unpacking
  command -v apt-get >/dev/null || skip "no apt-get to download Debian's kernel with"
  rm -rf "$work" && mkdir -p "$work/tree" || return
  for refresh in false true; do
    if $refresh; then apt-get update -qq || return; fi
    package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    [[ -n $package ]] && (cd "$work" && apt-get download -qq "$package") && break
  done
  dpkg-deb -x "$work"/linux-image-*.deb "$work/tree" && depmod -b "$work/tree" "${package#linux-image-}" &&
    mv "$work/tree" "$cache/kernel" && rm -rf "$work"
}
{
  flock 9
  [[ -d $cache/kernel ]] || fetch_kernel &>"$cache/log" || skip "Debian's kernel cannot be had: $(tail -n 1 "$cache/log")"
} 9>"$cache/lock"
vmlinuz=$(compgen -G "$cache/kernel/boot/vmlinuz-*")
release=${vmlinuz##*/vmlinuz-}

# ---- The job's folder: what the machines read, and where they write their results.
job=$(mktemp -d -t mori_ep_rdma_vm.XXXXXX) machines=()
end_machines() {
  local pid
  for pid in "${machines[@]}"; do kill -TERM "$pid"; done 2>/dev/null
  wait
  rm -rf "$job"
}
trap end_machines EXIT
trap 'exit 143' INT TERM HUP
mkdir -p "$job/share" "$job/initramfs"/{bin,proc,sys,dev,modules,host}
printf '%s=%q\n' nodes "$nodes" mtu "$mtu" seconds "$seconds" folder "$PWD" >"$job/share/settings"
printf '%q ' "$@" >"$job/share/command"

# First program: modules (crc32_generic: rdma_rxe asks the kernel for it by name), then the host's files as root.
cat >"$job/initramfs/init" <<'INIT'
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc && $b mount -t sysfs sys /sys && $b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module"; done </modules/order
options=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o $options,cache=loose,ro host /host || $b poweroff -f
for d in proc sys dev; do $b mount --move /$d /host/$d; done
$b mount -t tmpfs run /host/run && $b mkdir -p /host/run/job /host/dev/shm
$b mount -t tmpfs shm /host/dev/shm && $b ln -s /proc/self/fd /host/dev/fd
$b mount -t 9p -o $options,cache=none job /host/run/job || $b poweroff -f
exec $b chroot /host /bin/bash /run/job/guest
INIT
chmod +x "$job/initramfs/init"
cp "$(command -v busybox)" "$job/initramfs/bin/busybox"
for module in virtio_pci virtio-rng virtio_net 9pnet_virtio 9p crc32_generic rdma_rxe dummy; do
  modprobe -d "$cache/kernel" -S "$release" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
done | awk '!seen[$0]++' | while read -r file; do
  cp "$file" "$job/initramfs/modules/" && echo "${file##*/}" >>"$job/initramfs/modules/order"
done
(cd "$job/initramfs" && find . | cpio -o -H newc --quiet) >"$job/initramfs.cpio" || exit 125

# Second program: the network, the device, the command.
cat >"$job/share/guest" <<'GUEST'
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run
cd /run/job && . ./settings
power_off() { echo o >/proc/sysrq-trigger && sleep 60; }
(sleep $((seconds + 30)) && power_off) &  # should the host forget it
export NODES=$nodes ADDRESS=198.18.0.1 NODE
NODE=$(sed 's/.*mori_ep.node=\([0-9]*\).*/\1/' /proc/cmdline)
ulimit -l unlimited
ip link set lo up
[[ -e /sys/class/net/eth0 ]] || ip link add eth0 type dummy
{ ip link set eth0 mtu "$mtu" up && ip address add "198.18.0.$((NODE + 1))/24" dev eth0 &&
  rdma link add rxe0 type rxe netdev eth0; } >"output.$NODE" 2>&1 && : >"up.$NODE"
all() { for ((i = 0; i < nodes; ++i)); do [[ -e $1.$i ]] || return; done; }
until all up; do sleep 0.1; done
(cd "$folder" && . /run/job/command) >"output.$NODE" 2>&1 </dev/null
echo $? >"writing.$NODE" && mv "writing.$NODE" "code.$NODE"
until all code; do sleep 0.1; done
power_off
GUEST

# ---- The machines. Traffic between them goes through a Unix socket of QEMU's: it loses nothing, and leads nowhere else.
start_machine() {
  local network=()
  ((nodes == 1)) || network=(-netdev "stream,id=lan,server=$2,addr.type=unix,addr.path=$job/lan"
    -device "virtio-net-pci,netdev=lan,host_mtu=9000,romfile=,mac=52:54:00:00:00:0$1")
  # Without erms and fsrm the guest's kernel copies by words: faster here, and eight bytes are one store as on a card.
  setpriv --pdeathsig KILL qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -M q35 \
    -accel tcg,thread=multi -cpu max,la57=off,erms=off,fsrm=off -smp $((3 - nodes)) -m 1024 \
    -kernel "$vmlinuz" -initrd "$job/initramfs.cpio" -serial "file:$job/console.$1" -device virtio-rng-pci "${network[@]}" \
    -append "console=ttyS0 loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check net.ifnames=0 mori_ep.node=$1" \
    -fsdev "local,id=host,path=/,security_model=none,multidevs=remap,readonly=on" \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev "local,id=job,path=$job/share,security_model=none" -device virtio-9p-pci,fsdev=job,mount_tag=job \
    </dev/null &>"$job/emulator.$1" &
  machines+=($!)
}
start_machine 0 on
if ((nodes == 2)); then
  until [[ -S $job/lan ]] || ! kill -0 "${machines[0]}" 2>/dev/null; do sleep 0.1; done
  start_machine 1 off
fi

running() {
  local pid
  for pid in "${machines[@]}"; do kill -0 "$pid" 2>/dev/null && return; done
  return 1
}
end=$((SECONDS + seconds))
while running && ((SECONDS < end)); do sleep 0.1; done
code=0
for ((node = 0; node < nodes; ++node)); do
  prefix=$( ((nodes == 1)) || echo "[node $node] ")
  [[ ! -e $job/share/output.$node ]] || sed "s/^/$prefix/" "$job/share/output.$node"
  if [[ ! -e $job/share/code.$node ]]; then
    ((SECONDS < end)) && result=125 || result=124
    echo "${prefix}rdma_vm: no result after $SECONDS s; the console's end:"
    tail -qn 15 "$job/console.$node" "$job/emulator.$node" 2>/dev/null
  else
    result=$(<"$job/share/code.$node")
  fi
  ((code)) || code=$result
done
exit "$code"
