// Fifty named operations of every kind, over the world and overlapping process sets at once, in a
// random order that is another one on every rank, from three threads each. Every result is compared
// bit by bit with what all ranks can compute for themselves.
//
// Such a program must be free of deadlocks in itself. Two ranks whose threads all block, each in an
// operation that the other has not got to, wait for ever, and no runtime can help. So threads
// submit without blocking and wait when they have submitted everything; what blocks at once is
// called by one thread of each rank only, in one order on all ranks. Then, of the blocking
// operations that have not run, the first in that order has been reached, or will be without
// waiting, by all its ranks.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <set>

#include "csrc/base/str.h"
#include "tests/support/reference_reduce.h"
#include "tests/support/sanitized.h"
#include "tests/support/worlds.h"

namespace hvl::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kJobs = 50;
constexpr std::size_t kThreads = 3;

struct Group {
  ProcessSetId id = kWorldSet;
  std::vector<int> ranks;
};

struct Part {
  std::vector<std::int64_t> rows;  ///< by position in the group
  std::int64_t columns = 1;
};

/// One operation, as every rank of its group knows it.
struct Job {
  std::size_t index = 0;
  std::uint64_t seed = 0;  ///< of the inputs
  OpKind kind = OpKind::kAllreduce;
  std::string name;
  const Group* group = nullptr;
  tensor::ReduceSpec spec;
  int root = 0;  ///< position
  std::vector<Part> parts;
  std::vector<std::vector<std::int64_t>> splits;  ///< alltoall: by sender and receiver
  bool blocks = false;

  std::size_t size() const { return group->ranks.size(); }
};

std::size_t Pick(std::size_t count, std::mt19937_64& random) { return random() % count; }

std::int64_t RandomRows(std::mt19937_64& random) {
  if (random() % 300 == 0) return 3001;
  return std::array{0, 1, 1, 2, 3, 5, 16, 33}[Pick(8, random)];
}

void AddParts(Job& job, std::mt19937_64& random) {
  const bool may_be_group = job.kind != OpKind::kAlltoall && job.kind != OpKind::kBarrier;
  const std::size_t count = may_be_group && random() % 4 == 0 ? 2 + Pick(3, random) : 1;
  for (std::size_t i = 0; i < count && job.kind != OpKind::kBarrier; ++i) {
    Part part{std::vector(job.size(), RandomRows(random)),
              std::array{1, 2, 7, 31}[Pick(4, random)]};
    if (job.kind == OpKind::kAllgather) {
      for (std::int64_t& rows : part.rows) rows = RandomRows(random);
    }
    job.parts.push_back(std::move(part));
  }
  if (job.kind != OpKind::kAlltoall) return;
  for (std::size_t from = 0; from < job.size(); ++from) {
    std::vector<std::int64_t>& splits = job.splits.emplace_back(job.size());
    for (std::int64_t& rows : splits) rows = RandomRows(random);
    job.parts[0].rows[from] = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  }
}

/// Some programs, of allreduces only, run again and again, so that their plan may freeze; the next
/// one deviates from it.
bool Repeats(std::uint64_t seed) { return seed % 20 == 0; }

tensor::ReduceSpec RandomFiniteSpec(int ranks, std::mt19937_64& random) {
  tensor::ReduceSpec spec = RandomSpec(ranks, random);
  if (!std::isfinite(spec.prescale)) spec.prescale = 1;
  if (!std::isfinite(spec.postscale)) spec.postscale = 1;
  return spec;
}

/// Names come again with every seed, then of another operation, and in several groups at once.
std::vector<Job> MakeJobs(std::uint64_t seed, const std::vector<Group>& groups) {
  constexpr std::array kKinds{OpKind::kAllreduce,     OpKind::kAllreduce, OpKind::kAllreduce,
                              OpKind::kReducescatter, OpKind::kBroadcast, OpKind::kAllgather,
                              OpKind::kAlltoall,      OpKind::kBarrier};
  std::mt19937_64 random(seed);
  std::set<std::pair<ProcessSetId, std::string>> names;
  std::vector<Job> jobs(kJobs);
  for (std::size_t i = 0; i < kJobs; ++i) {
    Job& job = jobs[i];
    job.index = i;
    job.seed = random();
    job.kind = kKinds[Pick(kKinds.size(), random)];
    job.group = groups.data() + (random() % 2 == 0 ? 0 : Pick(groups.size(), random));
    if (Repeats(seed)) {
      job.kind = OpKind::kAllreduce;
      job.group = groups.data();
    }
    const int ranks = static_cast<int>(job.size());
    job.spec = {.dtype = DType::kFloat32, .op = ReduceOp::kSum, .rank_count = ranks};
    if (random() % 2 == 0) job.spec = RandomFiniteSpec(ranks, random);
    job.root = static_cast<int>(Pick(job.size(), random));
    job.name = Format("job.{}", Pick(10, random));
    if (!names.emplace(job.group->id, job.name).second) job.name = Format("other.{}", i);
    names.emplace(job.group->id, job.name);
    job.blocks = random() % 8 == 0;
    AddParts(job, random);
  }
  return jobs;
}

Bytes InputOf(const Job& job, std::size_t part, std::size_t position) {
  std::mt19937_64 random(job.seed + part * 16 + position);
  const Part& of = job.parts[part];
  return RandomElements(job.spec.dtype, of.rows[position] * of.columns, random);
}

Bytes Reduced(const Job& job, std::size_t part) {
  std::vector<Bytes> inputs;
  std::vector<const void*> pointers;
  for (std::size_t position = 0; position < job.size(); ++position) {
    inputs.push_back(InputOf(job, part, position));
    pointers.push_back(inputs.back().data());
  }
  Bytes output(inputs[0].size());
  ReferenceReduce(job.spec, pointers, output.data(),
                  job.parts[part].rows[0] * job.parts[part].columns);
  return output;
}

Bytes Slice(const Bytes& all, const Job& job, std::int64_t first_row, std::int64_t rows) {
  const std::int64_t row_bytes =
      job.parts[0].columns * static_cast<std::int64_t>(DTypeBytes(job.spec.dtype));
  const auto begin = all.begin() + first_row * row_bytes;
  return {begin, begin + rows * row_bytes};
}

/// What the rank at `position` shall have.
Bytes Expected(const Job& job, std::size_t part, std::size_t position) {
  const auto size = static_cast<std::int64_t>(job.size());
  const auto own = static_cast<std::int64_t>(position);
  Bytes all;
  switch (job.kind) {
    case OpKind::kBroadcast:
      return InputOf(job, part, static_cast<std::size_t>(job.root));
    case OpKind::kReducescatter: {
      Job one = job;
      one.parts = {job.parts[part]};
      const std::int64_t rows = job.parts[part].rows[0];
      const std::int64_t first = own * (rows / size) + std::min(own, rows % size);
      return Slice(Reduced(job, part), one, first, rows / size + (own < rows % size ? 1 : 0));
    }
    case OpKind::kAllgather:
      for (std::size_t from = 0; from < job.size(); ++from) {
        const Bytes input = InputOf(job, part, from);
        all.insert(all.end(), input.begin(), input.end());
      }
      return all;
    case OpKind::kAlltoall:
      for (std::size_t from = 0; from < job.size(); ++from) {
        const auto& splits = job.splits[from];
        const std::int64_t before =
            std::accumulate(splits.begin(), splits.begin() + own, std::int64_t{0});
        const Bytes rows = Slice(InputOf(job, 0, from), job, before, splits[position]);
        all.insert(all.end(), rows.begin(), rows.end());
      }
      return all;
    default:
      return Reduced(job, part);
  }
}

/// A job on one rank.
class Run {
 public:
  Run(const Job& job, int rank)
      : job_(job),
        position_(static_cast<std::size_t>(
            std::find(job.group->ranks.begin(), job.group->ranks.end(), rank) -
            job.group->ranks.begin())) {
    for (std::size_t i = 0; i < job.parts.size(); ++i) {
      inputs_.push_back(InputOf(job, i, position_));
      outputs_.emplace_back(inputs_.back().size());
    }
  }

  bool blocks() const { return job_.blocks; }

  Status Start(Session& session) {
    if (job_.blocks) return session.Run(MakeOperation(), &gathered_);
    HVL_ASSIGN_OR_RETURN(handle_, session.Submit(MakeOperation()));
    return Status::Ok();
  }

  Status Finish() {
    if (!handle_.valid()) return Status::Ok();
    HVL_RETURN_IF_ERROR(job_.index % 2 == 0 ? handle_.Wait() : handle_.WaitFor(kHangLimit));
    gathered_ = handle_.gathered();
    return Status::Ok();
  }

  Complaint Check() const {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const Bytes expected = Expected(job_, i, position_);
      Bytes result = outputs_[i];
      if (allocates()) {
        const auto* const data = static_cast<const std::byte*>(gathered_[i].data);
        const std::int64_t rows = gathered_[i].shape[0];
        result.assign(data, data + rows * job_.parts[i].columns *
                                       static_cast<std::int64_t>(DTypeBytes(job_.spec.dtype)));
      }
      if (result == expected) continue;
      return Format("{} '{}' of process set {}: tensor {} is wrong", OpKindName(job_.kind),
                    job_.name, job_.group->id, i);
    }
    return {};
  }

 private:
  bool allocates() const {
    return job_.kind == OpKind::kAllgather || job_.kind == OpKind::kAlltoall ||
           job_.kind == OpKind::kReducescatter;
  }

  Operation MakeOperation() {
    Operation operation;
    operation.kind = job_.kind;
    operation.name = job_.name;
    operation.reduce_op = job_.spec.op;
    operation.prescale = job_.spec.prescale;
    operation.postscale = job_.spec.postscale;
    operation.process_set = job_.group->id;
    if (job_.kind == OpKind::kBroadcast) {
      operation.root_rank = job_.group->ranks[static_cast<std::size_t>(job_.root)];
    }
    if (job_.kind == OpKind::kAlltoall) operation.splits = job_.splits[position_];
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      operation.tensors.push_back(
          {.input = inputs_[i].data(),
           .output = allocates() ? nullptr : outputs_[i].data(),
           .dtype = job_.spec.dtype,
           .shape = {job_.parts[i].rows[position_], job_.parts[i].columns}});
    }
    return operation;
  }

  const Job& job_;
  const std::size_t position_;
  std::vector<Bytes> inputs_, outputs_;
  Handle handle_;
  std::vector<GatheredTensor> gathered_;
};

/// What each thread does, in order.
std::array<std::vector<Run*>, kThreads> Divide(std::vector<Run>& runs, std::mt19937_64& random) {
  std::vector<Run*> free, blocking;
  for (Run& run : runs) (run.blocks() ? blocking : free).push_back(&run);
  std::shuffle(free.begin(), free.end(), random);
  std::array<std::vector<Run*>, kThreads> threads;
  for (std::size_t i = 0; i < free.size(); ++i) threads[i % kThreads].push_back(free[i]);
  // Between those of the first thread, in their own order.
  std::size_t at = 0;
  for (Run* const run : blocking) {
    at += Pick(threads[0].size() - at + 1, random);
    threads[0].insert(threads[0].begin() + static_cast<std::ptrdiff_t>(at), run);
    ++at;
  }
  return threads;
}

Complaint RunSeed(Session& session, std::uint64_t seed, const std::vector<Group>& groups) {
  const std::vector<Job> jobs = MakeJobs(seed, groups);
  const int rank = session.world().rank;
  std::vector<Run> runs;
  for (const Job& job : jobs) {
    const std::vector<int>& ranks = job.group->ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) runs.emplace_back(job, rank);
  }
  std::mt19937_64 random(seed * 8 + static_cast<unsigned>(rank));
  std::vector<std::future<Status>> threads;
  for (const std::vector<Run*>& mine : Divide(runs, random)) {
    threads.push_back(std::async(std::launch::async, [&session, mine] {
      Status status;
      for (Run* const run : mine) {
        if (status.ok()) status = run->Start(session);
      }
      for (Run* const run : mine) {
        if (status.ok()) status = run->Finish();
      }
      if (!status.ok()) session.Shutdown();  // lets nobody wait for what is left out
      return status;
    }));
  }
  Complaint complaint;
  for (auto& thread : threads) {
    const Status status = thread.get();
    if (complaint.empty() && !status.ok()) complaint = status.ToString();
  }
  for (const Run& run : runs) {
    if (complaint.empty()) complaint = run.Check();
  }
  return complaint;
}

Result<std::vector<Group>> MakeGroups(Session& session) {
  const int size = session.world().size;
  std::vector<Group> groups{{kWorldSet, *session.ProcessSetRanks(kWorldSet)}};
  std::vector<std::vector<int>> sets{{0}, {1}};
  if (size == 3) sets = {{0, 1}, {1, 2}, {0}, {0, 2}};
  if (size == 4) sets = {{0, 1}, {1, 2, 3}, {0, 3}, {2}};
  for (const std::vector<int>& ranks : sets) {
    HVL_ASSIGN_OR_RETURN(const ProcessSetId id, session.AddProcessSet(ranks));
    groups.push_back({id, ranks});
  }
  // The set {0, 1} in the world of two, and a second one of the same ranks in larger ones.
  for (const RankPair pair : {RankPair{0, 1}, RankPair{1, 0}}) {
    groups.push_back({PairSet(pair), {0, 1}});
  }
  return groups;
}

Complaint RunSeeds(Session& session, std::uint64_t first, std::uint64_t count) {
  const Result<std::vector<Group>> groups = MakeGroups(session);
  if (!groups.ok()) return groups.status().ToString();
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    Complaint complaint;
    for (int round = 0; complaint.empty() && round < (Repeats(seed) ? 10 : 1); ++round) {
      complaint = RunSeed(session, seed, *groups);
    }
    if (complaint.empty()) continue;
    session.Shutdown();
    return Format("--rng-seed {}: {}", seed, complaint);
  }
  return {};
}

TEST_CASE("fifty operations in any order from three threads, in several process sets at once") {
  const int size = GENERATE(2, 3, 4);
  const std::string plane = GENERATE("local", "tcp");
  const std::string threshold = GENERATE("0", "134217728");
  const std::uint64_t first = Catch::rngSeed();  // as it is told when the test fails
  const std::uint64_t count = (size == 2 ? 1000 : 100) / (kSanitized ? 50 : 1);
  CAPTURE(size, plane, threshold);
  // A deadlock of the negotiation becomes an error.
  const Knobs knobs{{"HVL_CPU_OPERATIONS", plane},
                    {"HVL_FUSION_THRESHOLD", threshold},
                    {"HVL_STALL_SHUTDOWN_TIME_SECONDS", "60"}};
  const auto results = RunWorld(
      size, knobs, [first, count](Session& session) { return RunSeeds(session, first, count); });
  for (const Result<Complaint>& result : results) {
    CHECK((result.ok() ? result.value() : result.status().ToString()) == "");
  }
}

}  // namespace
}  // namespace hvl::test
