// Every operation over every element type, through the public API, against the oracle; and results
// that do not depend on fusion, order or timing.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "csrc/base/str.h"
#include "tests/support/reference_reduce.h"
#include "tests/support/worlds.h"

namespace hvl::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DType kAllDTypes[] = {
#define HVL_X(enumerator, value, name, bytes) DType::enumerator,
    HVL_DTYPES(HVL_X)
#undef HVL_X
};
constexpr ReduceOp kReduceOps[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin,
                                   ReduceOp::kMax, ReduceOp::kProduct};

std::uint64_t Seed() { return Catch::rngSeed() != 0 ? Catch::rngSeed() : 1; }

/// The input of `rank` for the operation `name`: the same wherever it is computed.
Bytes InputOf(const std::string& name, int rank, DType dtype, std::int64_t count) {
  std::mt19937_64 random(std::hash<std::string>()(name) * 31 + static_cast<unsigned>(rank));
  return test::RandomElements(dtype, count, random);
}

// Of the groups of ranks that end there.
Bytes ReducedOf(const std::string& name, const std::vector<int>& group_ends,
                const tensor::ReduceSpec& spec, std::int64_t count) {
  std::vector<Bytes> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < group_ends.back(); ++rank) {
    inputs.push_back(InputOf(name, rank, spec.dtype, count));
  }
  for (const Bytes& input : inputs) pointers.push_back(input.data());
  Bytes output(inputs[0].size());
  test::ReferenceReduce(spec, group_ends, pointers, output.data(), count);
  return output;
}

Bytes ReducedOf(const std::string& name, int size, const tensor::ReduceSpec& spec,
                std::int64_t count) {
  return ReducedOf(name, std::vector<int>{size}, spec, count);
}

Operation Named(OpKind kind, std::string name, const Bytes& input, Bytes* output, DType dtype,
                Shape shape) {
  Operation operation;
  operation.kind = kind;
  operation.name = std::move(name);
  operation.tensors = {{.input = input.data(),
                        .output = output == nullptr ? nullptr : output->data(),
                        .dtype = dtype,
                        .shape = std::move(shape)}};
  return operation;
}

Complaint CheckAllreduce(Session& session, DType dtype, ReduceOp op, std::int64_t count,
                         bool in_place) {
  const int size = session.world().size;
  const tensor::ReduceSpec spec{.dtype = dtype,
                                .op = op,
                                .prescale = dtype == DType::kBool ? 1.0 : 0.5,
                                .postscale = dtype == DType::kBool ? 1.0 : 3.0,
                                .rank_count = size};
  if (!tensor::CheckReduction(spec).ok()) return {};
  const std::string name = Format("allreduce.{}.{}.{}", DTypeName(dtype), ReduceOpName(op), count);
  Bytes input = InputOf(name, session.world().rank, dtype, count);
  const Bytes input_before = input;
  Bytes separate(input.size());
  Bytes& output = in_place ? input : separate;
  Operation operation = Named(OpKind::kAllreduce, name, input, &output, dtype, {count});
  operation.reduce_op = op;
  operation.prescale = spec.prescale;
  operation.postscale = spec.postscale;
  if (const Status status = session.Run(operation); !status.ok()) return status.ToString();
  if (output != ReducedOf(name, size, spec, count)) return name + ": wrong result";
  if (!in_place && input != input_before) return name + ": the input has changed";
  return {};
}

Complaint CheckBroadcast(Session& session, DType dtype, std::int64_t count, bool in_place) {
  const int root = session.world().size - 1;
  const std::string name = Format("broadcast.{}.{}", DTypeName(dtype), count);
  Bytes input = InputOf(name, session.world().rank, dtype, count);
  Bytes separate(input.size());
  Bytes& output = in_place ? input : separate;
  Operation operation = Named(OpKind::kBroadcast, name, input, &output, dtype, {count});
  operation.root_rank = root;
  if (const Status status = session.Run(operation); !status.ok()) return status.ToString();
  return output == InputOf(name, root, dtype, count) ? Complaint() : name + ": wrong result";
}

/// Rank r contributes r + extra rows (so rank 0 none, at first) of two elements.
Complaint CheckAllgather(Session& session, DType dtype, std::int64_t extra) {
  const auto rows_of = [extra](int rank) { return rank + extra; };
  const int rank = session.world().rank;
  const std::string name = Format("allgather.{}.{}", DTypeName(dtype), extra);
  const Bytes input = InputOf(name, rank, dtype, rows_of(rank) * 2);
  std::vector<GatheredTensor> gathered;
  const Status status = session.Run(
      Named(OpKind::kAllgather, name, input, nullptr, dtype, {rows_of(rank), 2}), &gathered);
  if (!status.ok()) return status.ToString();
  Bytes expected;
  std::int64_t rows = 0;
  std::vector<std::int64_t> first_dims;
  for (int r = 0; r < session.world().size; ++r) {
    const Bytes part = InputOf(name, r, dtype, rows_of(r) * 2);
    expected.insert(expected.end(), part.begin(), part.end());
    rows += rows_of(r);
    first_dims.push_back(rows_of(r));
  }
  if (gathered.size() != 1) return name + ": not one result";
  const GatheredTensor& result = gathered[0];
  if (result.shape != Shape{rows, 2} || result.dtype != dtype) return name + ": wrong shape";
  if (result.first_dims != first_dims) return name + ": wrong parts";
  if (!expected.empty() && std::memcmp(result.data, expected.data(), expected.size()) != 0) {
    return name + ": wrong result";
  }
  return {};
}

Complaint CheckEverything(Session& session) {
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t count : {0, 1, 3, 1000}) {
      const bool in_place = count % 2 == 0;
      for (const ReduceOp op : kReduceOps) {
        if (auto wrong = CheckAllreduce(session, dtype, op, count, in_place); !wrong.empty())
          return wrong;
      }
      if (auto wrong = CheckBroadcast(session, dtype, count, in_place); !wrong.empty())
        return wrong;
    }
    for (const std::int64_t extra : {0, 5}) {
      if (auto wrong = CheckAllgather(session, dtype, extra); !wrong.empty()) return wrong;
    }
    if (auto wrong = CheckAllreduce(session, dtype, ReduceOp::kMax, 100'003, true); !wrong.empty())
      return wrong;
  }
  Operation barrier;
  barrier.kind = OpKind::kBarrier;
  return session.Run(barrier).ok() ? Complaint() : "the barrier fails";
}

TEST_CASE("HVL_SUM_GROUPS gives the bits of a cluster with such hosts, on every data plane") {
  const std::string plane = GENERATE("local", "tcp");
  const DType dtype = GENERATE(DType::kBfloat16, DType::kFloat32);
  const std::int64_t count = GENERATE(5, 60'000);
  const Knobs knobs = {{"HVL_SUM_GROUPS", "1,2"}, {"HVL_CPU_OPERATIONS", plane}};
  INFO(plane << " " << DTypeName(dtype) << " " << count);
  const auto results = RunWorld(3, knobs, [&](Session& session) -> Complaint {
    const Bytes input = InputOf("grouped", session.world().rank, dtype, count);
    Bytes output(input.size());
    Operation operation = Named(OpKind::kAllreduce, "grouped", input, &output, dtype, {count});
    if (const Status status = session.Run(operation); !status.ok()) return status.ToString();
    const tensor::ReduceSpec spec{.dtype = dtype, .op = ReduceOp::kAverage, .rank_count = 3};
    if (output != ReducedOf("grouped", std::vector<int>{1, 3}, spec, count)) return "other bits";
    const bool same_as_ungrouped = output == ReducedOf("grouped", 3, spec, count);
    return count > 1000 && same_as_ungrouped ? "summed in one group" : "";
  });
  CHECK(FirstComplaint(results).empty());
}

TEST_CASE("HVL_SUM_GROUPS that do not add up to the world are refused on every rank") {
  const auto results = RunWorld(2, {{"HVL_SUM_GROUPS", "2,1"}}, [](Session&) { return 0; });
  for (const auto& result : results) {
    CHECK(result.status().code() == StatusCode::kInvalidArgument);
    CHECK_THAT(result.status().message(),
               Catch::Contains("these are 3 ranks") && Catch::Contains("add up to 2, like 1,1"));
  }
}

TEST_CASE("every operation is right for every element type, on every data plane") {
  const std::string plane = GENERATE("local", "tcp");
  const int size = GENERATE(1, 2, 3, 4, 8);
  CAPTURE(plane, size);
  CHECK(FirstComplaint(RunWorld(size, {{"HVL_CPU_OPERATIONS", plane}}, CheckEverything)).empty());
}

TEST_CASE("a scalar is a tensor of one element") {
  const auto results = RunWorld(2, {}, [](Session& session) -> Complaint {
    double value = session.world().rank + 1;
    Operation operation;
    operation.reduce_op = ReduceOp::kAverage;
    operation.tensors = {
        {.input = &value, .output = &value, .dtype = DType::kFloat64, .shape = {}}};
    if (const Status status = session.Run(operation); !status.ok()) return status.ToString();
    return value == 1.5 ? Complaint() : "wrong average";
  });
  CHECK(FirstComplaint(results).empty());
}

TEST_CASE("Adasum adds orthogonal tensors and averages equal ones, each of a group by itself") {
  const std::string plane = GENERATE("local", "tcp");
  const int size = GENERATE(1, 2, 3);
  CAPTURE(plane, size);
  const auto check = [](Session& session) -> Complaint {
    const auto ranks = static_cast<std::size_t>(session.world().size);
    const auto rank = static_cast<std::size_t>(session.world().rank);
    std::vector<float> apart(ranks, 0.0F), alike = {1.0F, 2.0F, 3.0F};
    apart[rank] = static_cast<float>(rank + 1);
    Operation operation;
    operation.reduce_op = ReduceOp::kAdasum;
    for (std::vector<float>* values : {&apart, &alike}) {
      operation.tensors.push_back(
          {.input = values->data(), .output = values->data(), .shape = {std::ssize(*values)}});
    }
    if (const Status status = session.Run(operation); !status.ok()) return status.ToString();
    std::vector<float> sum(ranks);
    std::iota(sum.begin(), sum.end(), 1.0F);
    if (apart != sum) return "not the sum of orthogonal tensors";
    if (alike != std::vector{1.0F, 2.0F, 3.0F}) return "not the mean of equal tensors";

    std::int32_t integer = 1;
    operation.tensors = {
        {.input = &integer, .output = &integer, .dtype = DType::kInt32, .shape = {1}}};
    const Status refused = session.Run(operation);
    return refused.code() == StatusCode::kInvalidArgument ? Complaint() : refused.ToString();
  };
  CHECK(FirstComplaint(RunWorld(size, {{"HVL_CPU_OPERATIONS", plane}}, check)).empty());
}

/// One of 50 operations of mixed kinds, types and sizes.
struct Job {
  std::string name;
  DType dtype = DType::kFloat32;
  std::int64_t count = 0;
  ReduceOp op = ReduceOp::kSum;
};

std::vector<Job> MakeJobs() {
  std::vector<Job> jobs;
  for (int i = 0; i < 50; ++i) {
    const DType dtype = std::array{DType::kFloat32, DType::kFloat16, DType::kInt32,
                                   DType::kBfloat16}[static_cast<std::size_t>(i) % 4];
    const std::int64_t count =
        std::array{1, 15, 16, 17, 63, 64, 65, 5000}[static_cast<std::size_t>(i) % 8];
    const ReduceOp op = i % 3 == 0 ? ReduceOp::kAverage : ReduceOp::kSum;
    jobs.push_back({Format("job.{}", i), dtype, count, op});
  }
  return jobs;
}

/// Submits all jobs from three threads, in a random order that differs from rank to rank; twice, so
/// that the second time every name is known. Returns the results of all jobs in one vector.
Result<Bytes> RunShuffled(Session& session, std::uint64_t seed) {
  const std::vector<Job> jobs = MakeJobs();
  std::vector<Bytes> inputs, outputs;
  for (const Job& job : jobs) {
    inputs.push_back(InputOf(job.name, session.world().rank, job.dtype, job.count));
    outputs.emplace_back(inputs.back().size());
  }
  std::mt19937_64 random(seed * 1000 + static_cast<unsigned>(session.world().rank));
  for (int round = 0; round < 2; ++round) {
    std::vector<std::size_t> order(jobs.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::future<Status>> threads;
    for (std::size_t t = 0; t < 3; ++t) {
      threads.push_back(std::async(std::launch::async, [&, t]() -> Status {
        std::vector<Handle> handles;
        for (std::size_t i = t; i < order.size(); i += 3) {
          const Job& job = jobs[order[i]];
          Operation operation = Named(OpKind::kAllreduce, job.name, inputs[order[i]],
                                      &outputs[order[i]], job.dtype, {job.count});
          operation.reduce_op = job.op;
          HVL_ASSIGN_OR_RETURN(Handle handle, session.Submit(std::move(operation)));
          handles.push_back(handle);
        }
        for (Handle& handle : handles) HVL_RETURN_IF_ERROR(handle.Wait());
        return Status::Ok();
      }));
    }
    for (auto& thread : threads) HVL_RETURN_IF_ERROR(thread.get());
  }
  Bytes all;
  for (const Bytes& output : outputs) all.insert(all.end(), output.begin(), output.end());
  return all;
}

TEST_CASE("any order from any thread gives the same bits, whatever is fused") {
  const std::string plane = GENERATE("local", "tcp");
  const int size = GENERATE(2, 3);
  const std::uint64_t seed = Seed();
  CAPTURE(plane, size, seed);
  Bytes expected;
  for (const Job& job : MakeJobs()) {
    const tensor::ReduceSpec spec{.dtype = job.dtype, .op = job.op, .rank_count = size};
    const Bytes result = ReducedOf(job.name, size, spec, job.count);
    expected.insert(expected.end(), result.begin(), result.end());
  }
  for (const std::string threshold : {"0", "64", "134217728"}) {
    CAPTURE(threshold);
    const Knobs knobs{{"HVL_CPU_OPERATIONS", plane}, {"HVL_FUSION_THRESHOLD", threshold}};
    const auto results = RunWorld(size, knobs, [seed](Session& session) -> Complaint {
      const Result<Bytes> result = RunShuffled(session, seed);
      if (!result.ok()) return result.status().ToString();
      return std::string(reinterpret_cast<const char*>(result->data()), result->size());
    });
    for (const auto& result : results) {
      REQUIRE(result.ok());
      REQUIRE(result.value().size() == expected.size());
      CHECK(std::memcmp(result.value().data(), expected.data(), expected.size()) == 0);
    }
  }
}

TEST_CASE("a group runs all or nothing and tells all its results") {
  const std::string threshold = GENERATE("0", "64", "134217728");
  CAPTURE(threshold);
  const auto body = [](Session& session) -> Complaint {
    const int rank = session.world().rank;
    std::vector<float> a{1.0F * static_cast<float>(rank)}, b(100, 2), c;
    Operation group;
    group.name = "group";
    group.reduce_op = ReduceOp::kSum;
    for (std::vector<float>* values : {&a, &b, &c}) {
      group.tensors.push_back({.input = values->data(),
                               .output = values->data(),
                               .shape = {static_cast<std::int64_t>(values->size())}});
    }
    std::int64_t whole = rank;
    group.tensors.push_back(
        {.input = &whole, .output = &whole, .dtype = DType::kInt64, .shape = {}});
    if (const Status status = session.Run(group); !status.ok()) return status.ToString();
    if (a[0] != 3 || b[99] != 6 || whole != 3) return "wrong sum";

    Operation gathers;
    gathers.kind = OpKind::kAllgather;
    gathers.name = "gathers";
    gathers.tensors = {{.input = a.data(), .shape = {1}}, {.input = b.data(), .shape = {rank}}};
    std::vector<GatheredTensor> gathered;
    if (const Status status = session.Run(gathers, &gathered); !status.ok()) {
      return status.ToString();
    }
    if (gathered.size() != 2 || gathered[0].shape != Shape{3} || gathered[1].shape != Shape{3}) {
      return "wrong shapes";
    }
    return static_cast<const float*>(gathered[1].data)[2] == 6 ? Complaint() : "wrong rows";
  };
  CHECK(FirstComplaint(RunWorld(3, {{"HVL_FUSION_THRESHOLD", threshold}}, body)).empty());
}

TEST_CASE("a thousand small tensors cost a handful of batches") {
  const auto results = RunWorld(2, {}, [](Session& session) -> Complaint {
    std::vector<std::vector<float>> tensors(1000, std::vector<float>(256, 1));
    for (int round = 0; round < 3; ++round) {
      std::vector<Handle> handles;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        Operation operation;
        operation.name = Format("t{}", i);
        operation.reduce_op = ReduceOp::kSum;
        operation.tensors = {
            {.input = tensors[i].data(), .output = tensors[i].data(), .shape = {256}}};
        auto handle = session.Submit(std::move(operation));
        if (!handle.ok()) return handle.status().ToString();
        handles.push_back(*handle);
      }
      for (Handle& handle : handles) {
        if (const Status status = handle.Wait(); !status.ok()) return status.ToString();
      }
    }
    if (tensors[999][255] != 8) return "wrong sum";
    const std::uint64_t batches = session.counters().batches_dispatched;
    // A busy machine makes the bursts arrive in more pieces; one batch per tensor would be 3000.
    return batches < 1000 ? Complaint() : Format("{} batches", batches);
  });
  CHECK(FirstComplaint(results).empty());
}

TEST_CASE("memory from Allocate is zeroed, aligned, and outlives the session") {
  const std::string plane = GENERATE("local", "tcp");
  CAPTURE(plane);
  std::vector<SharedBuffer> kept(2);
  const auto results =
      RunWorld(2, {{"HVL_CPU_OPERATIONS", plane}}, [&kept](Session& session) -> Complaint {
        auto buffer = session.Allocate(4000);
        if (!buffer.ok()) return buffer.status().ToString();
        if (buffer->bytes < 4000 || reinterpret_cast<std::uintptr_t>(buffer->data) % 64 != 0) {
          return "wrong size or alignment";
        }
        auto* values = static_cast<float*>(buffer->data);
        if (std::any_of(values, values + 1000, [](float v) { return v != 0; })) return "not zero";
        std::fill(values, values + 1000, 2.0F);
        Operation operation;
        operation.reduce_op = ReduceOp::kSum;
        operation.tensors = {{.input = values, .output = values, .shape = {1000}}};
        if (const Status status = session.Run(operation); !status.ok()) return status.ToString();
        kept[static_cast<std::size_t>(session.world().rank)] = *buffer;
        return values[999] == 4 ? Complaint() : "wrong sum";
      });
  CHECK(FirstComplaint(results).empty());
  for (const SharedBuffer& buffer : kept) CHECK(static_cast<float*>(buffer.data)[999] == 4);
}

}  // namespace
}  // namespace hvl::test
