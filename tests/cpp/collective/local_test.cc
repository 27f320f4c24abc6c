// The shared-memory data plane as a whole: what it needs, what it refuses, what it leaves behind.
// That its results are right is the contract suite's business.
#include "csrc/collective/local.h"

#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <functional>

#include "tests/support/huge_parts.h"
#include "tests/support/log_capture.h"
#include "tests/support/mesh_ranks.h"
#include "tests/support/repeated_mapping.h"

namespace hvl::collective {
namespace {

using Catch::Contains;
using test::RunRanks;
using Backends = std::vector<std::unique_ptr<Backend>>;

LocalOptions SmallOptions() {
  return {.staging_bytes = 256 << 10, .heap_bytes = std::size_t{64} << 20};
}

std::vector<Result<std::unique_ptr<Backend>>> Create(
    int ranks, const std::function<LocalOptions(int)>& options) {
  const auto meshes = test::JoinRanks(ranks);
  REQUIRE(meshes.ok());
  return RunRanks(ranks, [&](int rank) {
    return CreateLocalBackend(*(*meshes)[static_cast<std::size_t>(rank)], options(rank), Logger());
  });
}

Backends CreateOk(int ranks, const LocalOptions& options = SmallOptions()) {
  Backends backends;
  for (auto& created : Create(ranks, [&options](int) { return options; })) {
    INFO(created.status().ToString());
    REQUIRE(created.ok());
    backends.push_back(std::move(created).value());
  }
  return backends;
}

// A mesh that is asked for nothing but its size.
class AloneMesh final : public net::Mesh {
 public:
  explicit AloneMesh(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::uint64_t generation() const override { return 1; }
  const std::vector<std::string>& blobs() const override { return blobs_; }
  const std::vector<int>& hosts() const override { return hosts_; }
  Result<std::vector<net::UniqueFd>> ExchangeFds(int) override { return Unexpected(); }
  std::unique_ptr<net::DataLinks> TakeDataLinks() override { return nullptr; }
  void Send(int, std::span<const std::byte>) override {}
  bool Poll(Duration, net::MeshReceiver&) override { return false; }
  void Sleep(Duration) override {}
  void Wake() override {}
  void FinishSending() override {}
  void Close() override {}

 private:
  static Status Unexpected() { return {StatusCode::kInternal, "the mesh was used"}; }
  int size_;
  std::vector<std::string> blobs_;
  std::vector<int> hosts_ = std::vector<int>(static_cast<std::size_t>(size_));
};

float AllreduceAlone(Backend& backend, double prescale) {
  float value = 2.0F;
  const ReducePiece piece{&value, &value, 1};
  const Status status = backend.Allreduce({&piece, 1}, {.prescale = prescale, .rank_count = 1});
  return status.ok() ? value : -1.0F;
}

TEST_CASE("a world of one works without any mesh traffic and still scales") {
  AloneMesh mesh(1);
  auto backend = CreateLocalBackend(mesh, SmallOptions(), Logger());
  REQUIRE(backend.ok());
  CHECK((*backend)->name() == "local");
  CHECK(AllreduceAlone(**backend, 1.5) == 3.0F);
  CHECK((*backend)->Allocate(1000).ok());
}

TEST_CASE("too many ranks and too little staging memory are refused with the limit") {
  AloneMesh crowd(5000);
  const Status many = CreateLocalBackend(crowd, SmallOptions(), Logger()).status();
  CHECK(many.code() == StatusCode::kNotSupported);
  CHECK_THAT(many.message(), Contains("5000") && Contains("1024"));
  AloneMesh alone(1);
  const Status little = CreateLocalBackend(alone, {.staging_bytes = 100}, Logger()).status();
  CHECK(little.code() == StatusCode::kInvalidArgument);
  CHECK_THAT(little.message(), Contains("HVL_STAGING"));
}

TEST_CASE("ranks with different staging sizes are told both values and the knob") {
  const auto created = Create(2, [](int rank) {
    LocalOptions options = SmallOptions();
    if (rank == 1) options.staging_bytes *= 2;
    return options;
  });
  for (const auto& result : created) {
    CHECK(result.status().code() == StatusCode::kMismatch);
    CHECK_THAT(result.status().message(),
               Contains("HVL_STAGING") && Contains("262144") && Contains("524288"));
  }
}

TEST_CASE("ranks that outnumber their processors do not spin, and the log says so") {
  cpu_set_t before;
  REQUIRE(::sched_getaffinity(0, sizeof(before), &before) == 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  const auto meshes = test::JoinRanks(2);
  REQUIRE(meshes.ok());
  const test::LogCapture capture;
  const auto created = RunRanks(2, [&](int rank) {
    ::sched_setaffinity(0, sizeof(one), &one);  // of this thread
    return CreateLocalBackend(*(*meshes)[static_cast<std::size_t>(rank)], SmallOptions(),
                              capture.logger());
  });
  for (const auto& result : created) CHECK(result.ok());
  CHECK(capture.Contains("spin_us=0 (more ranks than processors)"));
}

// Runs a world of two through small, staged and shared-memory operations.
Status UseWorld(Backends& backends) {
  const auto statuses = RunRanks(2, [&](int rank) -> Status {
    Backend& backend = *backends[static_cast<std::size_t>(rank)];
    HVL_ASSIGN_OR_RETURN(SharedBuffer buffer, backend.Allocate(1 << 20));
    std::vector<float> own(1 << 18, 1.0F);
    for (float* data : {own.data(), static_cast<float*>(buffer.data)}) {
      for (const std::int64_t count : {1, 1 << 18}) {
        std::fill_n(data, count, 1.0F);
        const ReducePiece piece{data, data, count};
        HVL_RETURN_IF_ERROR(backend.Allreduce({&piece, 1}, {.rank_count = 2}));
        if (std::count(data, data + count, 2.0F) != count) {
          return {StatusCode::kInternal, "wrong sum"};
        }
      }
    }
    return Status::Ok();
  });
  for (const Status& status : statuses) HVL_RETURN_IF_ERROR(status);
  return Status::Ok();
}

// Mounts a tmpfs with these options over /dev/shm, for this process alone. 0 or errno.
int HideDevShm(const char* options, unsigned long flags) {
  if (::unshare(CLONE_NEWNS) != 0) return errno;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno;
  return ::mount("none", "/dev/shm", "tmpfs", flags, options) == 0 ? 0 : errno;
}

int CountFiles(const char* directory) {
  DIR* const files = ::opendir(directory);
  if (files == nullptr) return -1;
  int count = 0;
  while (const dirent* file = ::readdir(files)) {  // NOLINT: this thread alone reads it
    if (file->d_name[0] != '.') ++count;
  }
  ::closedir(files);
  return count;
}

TEST_CASE("it works with a /dev/shm of 1 MiB, read-only or not, and leaves nothing there") {
  const unsigned long flags = GENERATE(0UL, static_cast<unsigned long>(MS_RDONLY));
  constexpr int kNotPermitted = 77;
  const ::pid_t child = ::fork();
  if (child == 0) {
    const int error = HideDevShm("size=1m", flags);
    if (error == EPERM || error == EACCES) ::_exit(kNotPermitted);
    if (error != 0) ::_exit(2);
    Backends backends = CreateOk(2);
    const Status status = UseWorld(backends);
    const bool clean = CountFiles("/dev/shm") == 0;
    ::_exit(status.ok() && clean ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPermitted) {
    WARN("skipped: needs the right to make a mount namespace (CAP_SYS_ADMIN)");
    SUCCEED();
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
}

int OpenDescriptors() { return CountFiles("/proc/self/fd"); }

TEST_CASE("worlds come and go without leaving descriptors or mappings") {
  const auto mappings = [] {
    int lines = 0;
    if (FILE* maps = std::fopen("/proc/self/maps", "re")) {
      std::array<char, 512> line{};
      while (std::fgets(line.data(), line.size(), maps) != nullptr) {
        if (std::strstr(line.data(), "horovodlite") != nullptr) ++lines;
      }
      std::fclose(maps);
    }
    return lines;
  };
  {
    Backends warm_up = CreateOk(2);
  }
  const int descriptors = OpenDescriptors();
  for (int round = 0; round < 20; ++round) {
    Backends backends = CreateOk(2);
    CHECK(mappings() > 0);
    CHECK(UseWorld(backends).ok());
  }
  CHECK(OpenDescriptors() == descriptors);
  CHECK(mappings() == 0);
}

TEST_CASE("ranks that work in different process sets are told so instead of mixing them up") {
  Backends backends = CreateOk(3);
  const auto statuses = RunRanks(2, [&](int rank) -> Status {
    const std::vector<int> ranks = rank == 0 ? std::vector{0, 1} : std::vector{0, 1, 2};
    HVL_ASSIGN_OR_RETURN(const auto part, backends[static_cast<std::size_t>(rank)]->Split(ranks));
    return part->Barrier();
  });
  for (const Status& status : statuses) {
    CHECK(status.code() == StatusCode::kInternal);
    CHECK_THAT(status.message(), Contains("ranks 0 and 1") || Contains("ranks 1 and 0"));
  }
}

TEST_CASE("a process set names the ranks of the world when a peer shows nonsense") {
  Backends backends = CreateOk(3);
  const auto statuses = RunRanks(2, [&](int place) -> Status {
    const std::vector<int> ranks = {1, 2};
    HVL_ASSIGN_OR_RETURN(const auto part,
                         backends[static_cast<std::size_t>(place + 1)]->Split(ranks));
    char byte = 0;
    const BroadcastPiece piece{&byte, &byte, 1};
    return place == 0 ? part->Barrier() : part->Broadcast({&piece, 1}, 0);
  });
  CHECK(statuses[0].culprit_rank() == 2);
  CHECK(statuses[1].culprit_rank() == 1);
}

// The thread sanitizer keeps four bytes for each one and each mapping: 17 GB here.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("tensors of more than 2^31 elements pass through staging memory") {
  Backends backends = CreateOk(2, {.staging_bytes = std::size_t{4} << 20, .heap_bytes = 0});
  const auto right = RunRanks(2, [&](int rank) {
    test::RepeatedMapping memory;
    memory.Fill(std::byte{static_cast<unsigned char>(rank + 3)});
    // Max is idempotent, so it does no harm that the same memory is reduced again and again.
    const ReducePiece piece{memory.data(), memory.data(), test::RepeatedMapping::kBytes - 1};
    const Status status = backends[static_cast<std::size_t>(rank)]->Allreduce(
        {&piece, 1}, {.dtype = DType::kUint8, .op = ReduceOp::kMax, .rank_count = 2});
    const std::byte* const last = memory.data() + test::RepeatedMapping::kBytes - 1;
    return status.ok() && last[-1] == std::byte{4} && *last == std::byte(rank + 3);
  });
  for (const bool is_right : right) CHECK(is_right);
}

TEST_CASE("parts of more than 2^31 bytes find their rank") {
  Backends backends = CreateOk(2, {.staging_bytes = std::size_t{4} << 20, .heap_bytes = 0});
  const auto wrong = RunRanks(2, [&](int rank) {
    return test::ExchangeHugeParts(*backends[static_cast<std::size_t>(rank)], rank);
  });
  for (const std::string& complaint : wrong) CHECK(complaint.empty());
}
#endif

}  // namespace
}  // namespace hvl::collective
