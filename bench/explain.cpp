// SPDX-License-Identifier: MIT
#include "report.hpp"

namespace ep_bench {

void explain(std::ostream& out) {
  out << R"(What is timed, on the host
  Every rank is a thread, or with --spawn, under mpirun and with --rank a process, that enqueues on its stream and waits
  for it. Before each timed phase all ranks meet in memory that they share, asleep until the last has come, then
  yielding until all are awake; one iteration takes from the first rank's start to the last rank's end on the clock that
  they share, so skew between ranks is inside. It is one code for threads and processes.
  d     dispatch alone: all ranks meet again before the combine that follows
  c     combine alone; the experts' rows lie in the registered buffer (zero-copy), or with --external in a buffer of
        the caller's, from which combine stages them: the copy is inside the time
  d+c   dispatch and combine back to back, enqueued together, nothing in between (experts take no time here)

What is timed, with --exec cuda
  One thread launches for all ranks; each rank has a stream of its own. One iteration takes, on each device's clock,
  from a start event on one stream, which the streams of the device's ranks then wait for, to an end event that waits for
  all of them; of several devices the longest counts, and so does that one begins before another. A kernel of one thread
  holds each device's one stream back until all is enqueued, and the host lets all go at once, so its time to launch is
  not inside; the wait of streams for each other, and the start of kernels, is.
  d, c, d+c  as above; --graph: each is one graph for each device, captured over the same streams, and the start and end
             events stand before and after its launch
  floor      empty kernels, one for each rank, launched in the very same way with the operator's blocks and warps, once
             in every iteration before the phases; over: a phase's p50us less the floor's (d+c: less one floor)
  cache      --l2 cold (default): before the start event, four times the second-level cache is read, so that neither
             inputs nor rows of the iteration before are found there; what is read is clean, so nothing has to be
             written back while the phase runs. --l2 warm: phases follow each other as they are, which for few tokens
             finds everything in the cache
  --devices  rank r runs on device r * devices / world
  --per-rank says what each rank received; times of single ranks are not taken

Columns of `run`
  tokens     tokens of each rank; hidden, topk, experts (all ranks'), dtype, routing as asked for
  p50us      median over iterations, microseconds; p99us: 99th percentile (the largest, under 100 iterations)
  MB         payload bytes of all ranks, 10^6; ids and weights travel too, and are not counted
               d: (tokens with a destination, read once + rows written) x row bytes
               c: (rows read + tokens written) x row bytes; --external: + staged MB
               d+c: their sum
             a token is one row for each distinct rank among its experts
  GB/s       MB over p50us, 10^9 bytes per second, read + written
  ratio      GB/s over the ceiling
  mix        GB/s over what the row loops give for the phase's own mix of reads and writes, byte by byte:
               d: 1 read 5 written; c: 5 read 1 written, --external: staging as memcpy; d+c: each part in its loop
             few tokens have exactly five destinations: 1 is near the bound, not the bound
             between nodes rows that cross move more often, as memcpy does, in d and in c: with v1 they are written for
             the network, read and written by it, and read where they arrive (4 x), with internode twice less
  ceiling    memcpy by as many threads as the ranks have cores, each with its own buffers, together far beyond the
             last-level cache where memory allows; bytes counted read + written; median of the samples taken before
             and after all configurations, in this run
               cuda: the runtime's copy of 1 GiB in one device's memory, at the best of several distances between
               source and target; devices measured in turn, added up
  row loops  the same threads, memory and counting: rows of one place to five others, and of five (xor of their words)
             to one; prefetch and streaming stores, no conversion, no signals. memcpy reads as much as it writes
               cuda: kernels that move 16-byte vectors between six places of 512 MiB each, and do nothing else; the
               best of several block counts, block sizes, vectors in flight, and plain or streaming access. Many short
               blocks, which start in order, do best; in brackets the best of those whose blocks are all on the device
               together and loop, as those of a schedule must
  --quant    what rows are on the wire: bytes of rows are those that travel, scales included; dispatch reads the caller's
             rows, combine writes elements, --external reads elements and writes coded rows
  blocks     cuda: blocks x warps of each rank's launches; min: the fastest iteration
  MiB/rank   footprint: the arena of one rank; foot: that over the bytes the contract needs (rows received and rows to
             combine, with weights, ids and positions)
  staged MB  with --external: each received row read once and written once, part of c and d+c
  check      ok, or FAILED; what differs is on stderr (rank, token, element, got, expected), and the exit code is 1

Between devices (--devices 2 and more), a second table
  MB         rows that leave, or reach, the device with most of them, x row bytes, one way: what a dispatch stores to the
             other devices, and a combine reads back; d+c both. GB/s: over p50us
  push       GB/s over what plain kernels push: a vector read once and stored to every other device, all devices at once,
             GB/s of each one way; pull: over what they pull, adding the vectors of all other devices; the best of
             several block counts and vectors in flight. The copy engines' figure is in the head

Between nodes (--schedule internode or v1), a second table
  rows       received by all ranks; pairs: distinct (token, node) pairs, a token's own node among them; crossing: what
             goes over the network: (token, rank) pairs of other nodes, with v1 (token, node) pairs of other nodes
  XGMI GB/s  rows x row bytes over p50us, and RDMA GB/s pairs x row bytes over p50us, as MORI's guide counts them
  wire MB    what was put to the network in one dispatch, or combine, of all ranks: rows, what goes beside them, counts;
             without what the network adds. wire/row: over crossing x row bytes; wire GB/s: over p50us
  --stats    what each rank put to each peer in the whole run: messages, times that a queue was full (refusals),
             completions, errors, and the longest that a message took to complete

Columns of `mpi-baseline`
  us         p50 of mori_ep and of MPI, measured in turn in the same run; ratio: GB/s over the ceiling, with the same
             bytes for both; mori/MPI: mori_ep's time over MPI's (0.2 is a fifth)
  MPI        d: count rows, MPI_Alltoall of counts, pack rows by destination rank, MPI_Alltoallv of rows and of
             ids + weights + positions, unpack those (rows arrive where they are wanted: no copy)
             c: MPI_Alltoallv of rows (the experts wrote where it sends from: no copy), then sum in fp32 with one
             rounding, by mori_ep's own vectorised loop
             buffers are allocated and touched before; one row is one MPI datatype
             MPI processes sleep while mori_ep's 8 threads are timed

What is checked, before and after timing
  Every element of every row, id, weight, source position, row order and count after dispatch, bit by bit; every element
  of every output against a double-precision sum computed from the routes alone, within the roundings that the element
  type makes unavoidable; that inputs were not written. With --quant rows and outputs are checked within what the format's
  error bound allows an element, and outputs also by the norm of each row's error; scales must be the right ones.
  Rows spell their rank and token; expert e answers
  weight x (1 + e / experts) x (row rotated by e elements). The loop is followed by one more, untimed, whose outputs are
  checked as well; with --exec cuda so are its rows, what it writes to is overwritten first, and all is copied back to
  the host's checks; with --graph it is the graphs that are checked.

Exit codes
  0 all checks ok, 1 wrong data or an error of the library, 2 usage (bad option or combination, or too little memory),
  3 --exec cuda and no device to run on
  Ranks that are processes: every process ends with the same code unless it was killed; one that ends before the others
  ends the run for all, with 1
)";
}

}  // namespace ep_bench
