# SPDX-License-Identifier: MIT
"""NCCL's all-to-all with what an MoE layer needs around it, one process a GPU: the peer of `ep_bench run --exec cuda
--world N --devices N`.

python3 bench/nccl_alltoall.py --tokens 1,16,128,1024,4096 [--world N] [--graph]

dispatch: gather the tokens' rows, ids and weights by destination rank, all-to-all of both. What arrives lies in (source
rank, token) order, so nothing is left to unpack. Counts and indices are known before: neither their exchange nor their
making is timed, which favours NCCL.
layer: the same from the ids alone, as a layer has to: counts, their exchange, the host's look at them, indices. Only
without --graph, since the host has to look.
combine: all-to-all of rows back, then the sum of each token's rows, in fp32, rounded once.
all-to-all: dispatch's of rows, without packing.
A token is one row for each distinct rank among its experts, drawn uniformly. One iteration is timed on every device
between two events, behind a kernel that spins until all is enqueued; the shortest of the devices' times counts, so that
none is charged for waiting for another (ep_bench takes the longest). Medians over iterations. Results are checked before and after timing.
"""
import argparse
import json
import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Layer:
    """One rank's operands. Every rank draws the routes of all, so each knows all counts."""

    def __init__(self, args, tokens, rank):
        world = args.world
        routes = torch.Generator().manual_seed(args.seed)
        experts = torch.rand(world * tokens, args.experts, generator=routes).argsort(dim=1)[:, : args.topk]
        owners = experts // (args.experts // world)
        goes = torch.zeros(world, tokens, world, dtype=torch.bool)
        goes.view(-1, world).scatter_(1, owners, True)
        self.sent = goes[rank].sum(dim=0).tolist()
        self.received = goes[:, :, rank].sum(dim=1).tolist()
        by_destination = goes[rank].t().nonzero()  # (destination, token), sorted
        device = torch.device("cuda", rank)
        self.token_of = by_destination[:, 1].to(device)
        self.owners = owners.view(world, tokens, args.topk)[rank].to(device)
        # Ids and weights of a token: two words for each expert.
        self.routes = torch.arange(tokens * 2 * args.topk, dtype=torch.int32, device=device).view(tokens, -1) + rank
        # Where each token's rows come back, padded with a row of zeros behind the last.
        places = torch.full((tokens, world), len(by_destination), dtype=torch.int64)
        places[by_destination[:, 1], by_destination[:, 0]] = torch.arange(len(by_destination))
        self.places = places.reshape(-1).to(device)
        self.tokens, self.world, self.hidden = tokens, world, args.hidden
        # Row t of rank r spells both; small whole numbers, so that sums are exact.
        base = torch.arange(tokens, dtype=torch.float32)[:, None] % 61 + rank
        pattern = torch.arange(args.hidden, dtype=torch.float32)[None, :] % 7
        self.x = (base + pattern).to(torch.bfloat16).to(device)
        self.copies = goes[rank].sum(dim=1, keepdim=True).to(device)
        rows = sum(self.received)
        self.expected = torch.cat(
            [
                (torch.nonzero(goes[s, :, rank]).float() % 61 + s + pattern).to(torch.bfloat16)
                for s in range(world)
            ]
        ).to(device)
        self.packed_routes = self.routes.new_empty(len(by_destination), 2 * args.topk)
        self.received_routes = self.routes.new_empty(rows, 2 * args.topk)
        self.expected_routes = torch.cat(
            [
                torch.nonzero(goes[s, :, rank]).int() * 2 * args.topk + torch.arange(2 * args.topk).int() + s
                for s in range(world)
            ]
        ).to(device)
        self.packed = torch.empty(len(by_destination), args.hidden, dtype=torch.bfloat16, device=device)
        self.rows = torch.empty(rows, args.hidden, dtype=torch.bfloat16, device=device)
        self.back = torch.zeros(len(by_destination) + 1, args.hidden, dtype=torch.bfloat16, device=device)
        self.y = torch.empty_like(self.x)
        self.gathered = torch.empty(tokens * world, args.hidden, dtype=torch.bfloat16, device=device)
        # Rows over the links of the device with most of them, one way.
        away = goes.clone()
        for r in range(world):
            away[r, :, r] = False
        self.link_rows = max(away.sum(dim=(1, 2)).max().item(), away.sum(dim=(0, 1)).max().item())

    def dispatch(self):
        self.send(self.token_of, self.received, self.sent)

    def send(self, token_of, received, sent):
        torch.index_select(self.x, 0, token_of, out=self.packed)
        torch.index_select(self.routes, 0, token_of, out=self.packed_routes)
        dist.all_to_all_single(self.rows, self.packed, received, sent)
        dist.all_to_all_single(self.received_routes, self.packed_routes, received, sent)

    def layer(self):
        goes = torch.zeros(self.tokens, self.world, dtype=torch.int64, device=self.x.device)
        goes.scatter_(1, self.owners, 1)
        counts = torch.empty(2, self.world, dtype=torch.int64, device=self.x.device)
        torch.sum(goes, dim=0, out=counts[0])
        dist.all_to_all_single(counts[1], counts[0])
        sent, received = counts.tolist()
        self.send(goes.t().nonzero()[:, 1], received, sent)

    def combine(self):
        dist.all_to_all_single(self.back[:-1], self.rows, self.sent, self.received)
        torch.index_select(self.back, 0, self.places, out=self.gathered)
        torch.sum(self.gathered.view(self.tokens, self.world, self.hidden), dim=1, out=self.y)

    def exchange(self):
        """The all-to-all alone: what NCCL moves without packing."""
        dist.all_to_all_single(self.rows, self.packed, self.received, self.sent)

    def check(self):
        """One of each, and what differs."""
        for t in (self.packed, self.rows, self.back[:-1], self.y):
            t.fill_(float("nan"))
        for phase in (self.dispatch, self.layer):
            self.rows.fill_(float("nan"))
            self.received_routes.fill_(-1)
            phase()
            torch.cuda.synchronize()
            if not torch.equal(self.rows, self.expected):
                return f"{phase.__name__} brought other rows"
            if not torch.equal(self.received_routes, self.expected_routes):
                return f"{phase.__name__} brought other ids and weights"
        self.combine()
        torch.cuda.synchronize()
        if not torch.equal(self.y, (self.x.float() * self.copies).to(torch.bfloat16)):
            return "combine gave other sums"
        return ""


def measure(args, layer, phase):
    """The samples of this rank, microseconds."""
    run = phase
    if args.graph:
        for _ in range(3):
            phase()
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            phase()
        run = graph.replay
    sweep = torch.empty(64 << 20, dtype=torch.int32, device=layer.x.device)
    samples = []
    for i in range(-args.warmup, args.iterations):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        sweep.sum()
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        torch.cuda._sleep(600_000)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if i >= 0:
            samples.append(begin.elapsed_time(end) * 1e3)
    return samples


def rank_main(rank, args, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=args.world, device_id=torch.device("cuda", rank))
    results, failed = [], False
    for tokens in args.tokens:
        layer = Layer(args, tokens, rank)
        wrong = layer.check()
        row = {"tokens": tokens, "link_rows": layer.link_rows}
        for name in ("dispatch", "combine", "exchange") + (() if args.graph else ("layer",)):
            mine = torch.tensor(measure(args, layer, getattr(layer, name)), device=layer.x.device)
            dist.all_reduce(mine, op=dist.ReduceOp.MIN)
            ordered = mine.sort().values
            row[name + "_us"] = ordered[len(ordered) // 2].item()
            row[name + "_p99_us"] = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))].item()
        wrong = wrong or layer.check()
        verdict = torch.tensor([1.0 if wrong else 0.0], device=layer.x.device)
        dist.all_reduce(verdict)
        row["check"] = "ok" if verdict.item() == 0 else wrong or "wrong on another rank"
        failed = failed or verdict.item() != 0
        results.append(row)
    if rank == 0:
        print(
            f"# NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}, torch {torch.__version__}, {args.world} x "
            f"{torch.cuda.get_device_name(0)}, hidden {args.hidden}, top-{args.topk} of {args.experts}, bf16, "
            f"{'graph replay' if args.graph else 'eager'}, {args.iterations} iterations"
        )
        print("tokens | dispatch us    p99 | layer us    p99 | combine us    p99 | all-to-all us  GB/s one way | check")
        for r in results:
            gbps = r["link_rows"] * args.hidden * 2 / r["exchange_us"] / 1e3
            layer_us = f"{r['layer_us']:8.1f} {r['layer_p99_us']:6.1f}" if "layer_us" in r else "       -      -"
            print(
                f"{r['tokens']:6d} | {r['dispatch_us']:11.1f} {r['dispatch_p99_us']:6.1f} | {layer_us} | "
                f"{r['combine_us']:10.1f} {r['combine_p99_us']:6.1f} | {r['exchange_us']:13.1f} {gbps:13.1f} | {r['check']}"
            )
        if args.save:
            with open(args.save, "w") as file:
                json.dump({"arguments": {k: v for k, v in vars(args).items()}, "results": results}, file, indent=2)
    dist.destroy_process_group()
    if failed:
        sys.exit(1)


def main():
    def whole_numbers(text):
        return [int(t) for t in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=torch.cuda.device_count(), help="processes, one a GPU")
    parser.add_argument("--tokens", type=whole_numbers, default=[1, 16, 128, 1024, 4096], help="of each rank")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--topk", type=int, default=8)
    parser.add_argument("--experts", type=int, default=256, help="of all ranks")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--graph", action="store_true", help="replay captured graphs")
    parser.add_argument("--save", help="a file for the JSON form")
    args = parser.parse_args()
    if not 1 <= args.world <= torch.cuda.device_count():
        sys.exit(f"--world is {args.world}, limit {torch.cuda.device_count()}: one process a visible GPU.")
    if args.experts % args.world != 0:
        sys.exit(f"--experts {args.experts} is not a multiple of --world {args.world}: every rank hosts the same number.")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(rank_main, (args, port), nprocs=args.world)


if __name__ == "__main__":
    main()
