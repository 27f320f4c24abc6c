// Our side of the comparison, through the public C++ API. Started by hvlrun.
//   allreduce|fresh|many|grouped <bytes> <tensors> <warm-up> <iterations>
//                                   with _arena: memory of the runtime
//   idle <seconds>                  processor seconds, control frames sent, context switches
//   cycle <count>                   longest Create and Shutdown; growth of memory, threads and
//                                   descriptors
#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "horovodlite/session.h"
#include "tests/bench/native/command.h"
#include "tests/bench/native/control.h"

namespace hvl::bench {
namespace {

[[noreturn]] void Fail(const Status& status) {
  fprintf(stderr, "%s\n", status.ToString().c_str());
  exit(1);
}

void Check(const Status& status) {
  if (!status.ok()) Fail(status);
}

template <typename T>
T Take(Result<T> result) {
  if (!result.ok()) Fail(result.status());
  return std::move(result).value();
}

/// What is reduced: `tensors` tensors of `count` floats in one block.
struct Buffer {
  std::shared_ptr<void> owner;
  float* data = nullptr;
  std::int64_t count = 0;
  std::size_t tensors = 1;

  std::size_t total() const { return static_cast<std::size_t>(count) * tensors; }
  TensorArg Tensor(std::size_t index) const {
    float* start = data + static_cast<std::size_t>(count) * index;
    return {.input = start, .output = start, .dtype = DType::kFloat32, .shape = {count}};
  }
};

/// After so many a plan is frozen, if the operations allow it.
constexpr int kIterationsToFreeze = 8;

class Bench {
 public:
  explicit Bench(std::unique_ptr<Session> session) : session_(std::move(session)) {}

  int rank() const { return session_->world().rank; }
  /// In a session of its own, as a program that does nothing else: what was measured before it has
  /// no influence on when its plan freezes.
  double Run(Command command);
  std::string Idle(int seconds);
  std::string Cycle(int count);

 private:
  Buffer MakeBuffer(const Command& command, bool arena);
  void Verify(const Buffer& buffer);
  void Allreduce(const Buffer& buffer);
  void AllreduceMany(const Buffer& buffer);
  void AllreduceGroup(const Buffer& buffer);
  void Barrier();
  double Fresh(const Buffer& buffer, int iterations);
  double Average(const Command& command, const Buffer& buffer, int iterations);

  std::unique_ptr<Session> session_;
};

Buffer Bench::MakeBuffer(const Command& command, bool arena) {
  Buffer buffer;
  buffer.count = static_cast<std::int64_t>(command.bytes / sizeof(float));
  buffer.tensors = command.tensors;
  if (arena) {
    SharedBuffer shared = Take(session_->Allocate(buffer.total() * sizeof(float)));
    buffer.owner = std::move(shared.owner);
    buffer.data = static_cast<float*>(shared.data);
  } else {
    buffer.owner = std::shared_ptr<float[]>(new float[buffer.total()]);
    buffer.data = static_cast<float*>(buffer.owner.get());
  }
  return buffer;
}

Operation Sum(std::string name, TensorArg tensor) {
  Operation operation;
  operation.name = std::move(name);
  operation.reduce_op = ReduceOp::kSum;
  operation.tensors.push_back(std::move(tensor));
  return operation;
}

void Bench::Allreduce(const Buffer& buffer) {
  Check(session_->Run(Sum("bench", buffer.Tensor(0))));
}

void Bench::AllreduceMany(const Buffer& buffer) {
  std::vector<Handle> handles;
  handles.reserve(buffer.tensors);
  for (std::size_t i = 0; i < buffer.tensors; ++i) {
    handles.push_back(Take(session_->Submit(Sum("bench." + std::to_string(i), buffer.Tensor(i)))));
  }
  for (Handle& handle : handles) Check(handle.Wait());
}

void Bench::AllreduceGroup(const Buffer& buffer) {
  Operation group = Sum("bench.group", buffer.Tensor(0));
  for (std::size_t i = 1; i < buffer.tensors; ++i) group.tensors.push_back(buffer.Tensor(i));
  Check(session_->Run(std::move(group)));
}

void Bench::Barrier() {
  Operation barrier;
  barrier.kind = OpKind::kBarrier;
  barrier.name = "bench.barrier";
  Check(session_->Run(std::move(barrier)));
}

/// One allreduce whose result is known; leaves zeros, which stay zeros however often they are
/// added.
void Bench::Verify(const Buffer& buffer) {
  const int size = session_->world().size;
  const float expected = static_cast<float>(size * (size + 1)) / 2;
  std::fill_n(buffer.data, buffer.total(), static_cast<float>(rank() + 1));
  Buffer whole = buffer;
  whole.count = static_cast<std::int64_t>(buffer.total());
  Allreduce(whole);
  const float* end = buffer.data + buffer.total();
  const float* wrong = std::find_if(buffer.data, const_cast<float*>(end),
                                    [expected](float value) { return value != expected; });
  if (wrong != end) {
    Fail({StatusCode::kInternal,
          "the sum is " + std::to_string(*wrong) + " instead of " + std::to_string(expected)});
  }
  std::fill_n(buffer.data, buffer.total(), 0.0F);
}

/// As in training: each time the rank has just written what is reduced.
double Bench::Fresh(const Buffer& buffer, int iterations) {
  double seconds = 0;
  for (int i = 0; i < iterations; ++i) {
    std::fill_n(buffer.data, buffer.total(), static_cast<float>(i));
    Barrier();
    const double start = control_now();
    Allreduce(buffer);
    seconds += control_now() - start;
  }
  return seconds / iterations;
}

double Bench::Average(const Command& command, const Buffer& buffer, int iterations) {
  if (command.operation == "fresh") return Fresh(buffer, iterations);
  const double start = control_now();
  for (int i = 0; i < iterations; ++i) {
    if (command.operation == "many") {
      AllreduceMany(buffer);
    } else if (command.operation == "grouped") {
      AllreduceGroup(buffer);
    } else {
      Allreduce(buffer);
    }
  }
  return (control_now() - start) / iterations;
}

double Bench::Run(Command command) {
  constexpr std::string_view kArena = "_arena";
  const bool arena = command.operation.ends_with(kArena);
  if (arena) command.operation.resize(command.operation.size() - kArena.size());
  session_.reset();
  session_ = Take(Session::Create());
  const Buffer buffer = MakeBuffer(command, arena);
  Verify(buffer);
  Average(command, buffer, kIterationsToFreeze + command.warm);
  return Average(command, buffer, command.iterations);
}

double ProcessorSeconds(const rusage& usage) {
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string Bench::Idle(int seconds) {
  rusage before{};
  rusage after{};
  Barrier();
  const std::uint64_t frames = session_->counters().control_frames_sent;
  getrusage(RUSAGE_SELF, &before);
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  getrusage(RUSAGE_SELF, &after);
  const std::uint64_t sent = session_->counters().control_frames_sent - frames;
  return std::to_string(ProcessorSeconds(after) - ProcessorSeconds(before)) + " " +
         std::to_string(sent) + " " +
         std::to_string(after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw);
}

/// What must not grow.
struct Footprint {
  long rss_bytes = 0, threads = 0, descriptors = 0;
};

long CountEntries(const char* path) {
  DIR* folder = opendir(path);
  if (folder == nullptr) control_die(path);
  long count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

Footprint Measure() {
  Footprint now;
  long pages = 0;
  long resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  now.rss_bytes = resident * sysconf(_SC_PAGESIZE);
  now.threads = CountEntries("/proc/self/task");
  now.descriptors = CountEntries("/proc/self/fd");
  return now;
}

std::string Bench::Cycle(int count) {
  double longest_init = 0;
  double longest_shutdown = 0;
  Footprint before;
  for (int i = 0; i <= count; ++i) {
    // The first cycle is not counted: what it leaves in the allocator stays the same from then on.
    if (i == 1) before = Measure();
    Barrier();
    const double start = control_now();
    session_.reset();
    const double ended = control_now();
    session_ = Take(Session::Create());
    const double created = control_now();
    if (i == 0) continue;
    longest_shutdown = std::max(longest_shutdown, ended - start);
    longest_init = std::max(longest_init, created - ended);
  }
  const Footprint after = Measure();
  char text[kControlLineBytes];
  snprintf(text, sizeof(text), "%.6f %.6f %ld %ld %ld", longest_init, longest_shutdown,
           after.rss_bytes - before.rss_bytes, after.threads - before.threads,
           after.descriptors - before.descriptors);
  return text;
}

std::string Answer(Bench& bench, const std::string& line) {
  const std::string_view text = line;
  if (text.starts_with("idle ")) return bench.Idle(ParseInt(text.substr(5)));
  if (text.starts_with("cycle ")) return bench.Cycle(ParseInt(text.substr(6)));
  std::array<char, 32> number{};
  snprintf(number.data(), number.size(), "%.9g", bench.Run(ParseCommand(line)));
  return number.data();
}

}  // namespace
}  // namespace hvl::bench

int main() {
  using namespace hvl::bench;  // NOLINT(google-build-using-namespace)
  Bench bench(Take(hvl::Session::Create()));
  const int control = control_connect(bench.rank());
  char line[kControlLineBytes];
  while (control_next(control, line)) {
    control_send(control, ("ok " + Answer(bench, line) + "\n").c_str());
  }
  return 0;
}
