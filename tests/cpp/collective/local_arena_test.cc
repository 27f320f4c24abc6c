// Arenas: where they are mapped, whose are refused, and the heap inside.
#include "csrc/collective/local_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/collective/local_heap.h"

namespace hvl::collective {
namespace {

using Catch::Contains;
constexpr std::size_t kWordsBytes = 1000;
constexpr std::size_t kHeapBytes = std::size_t{64} << 20;

ArenaIdentity Identity(int rank, int ranks = 2) {
  return {.rank = rank, .ranks = ranks, .generation = 7, .staging_bytes = 65536};
}

std::shared_ptr<Arena> CreateOk(const ArenaIdentity& identity,
                                std::size_t heap_bytes = kHeapBytes) {
  auto arena = Arena::Create(identity, kWordsBytes, heap_bytes);
  INFO(arena.status().ToString());
  REQUIRE(arena.ok());
  return std::move(arena).value();
}

net::UniqueFd Duplicate(int fd) { return net::UniqueFd(::dup(fd)); }

Result<std::unique_ptr<Arena>> OpenAs(const ArenaIdentity& identity, int owner, int fd) {
  return Arena::Open(Duplicate(fd), owner, identity, kWordsBytes);
}

// Runs `body` in a child process and returns its exit code.
int InChild(const std::function<int()>& body) {
  const ::pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST_CASE("what the owner writes its peers read, at addresses that are pages apart mod 2^28") {
  std::vector<std::shared_ptr<Arena>> own;
  for (int rank = 0; rank < 3; ++rank) own.push_back(CreateOk(Identity(rank, 3)));
  std::vector<std::byte*> bases;
  std::vector<std::unique_ptr<Arena>> opened;
  for (int owner = 0; owner < 3; ++owner) {
    auto arena = OpenAs(Identity(0, 3), owner, own[static_cast<std::size_t>(owner)]->fd());
    REQUIRE(arena.ok());
    bases.push_back((*arena)->heap());
    opened.push_back(std::move(arena).value());
  }
  own[2]->staging(Lane::kWorld)[5] = std::byte{42};
  CHECK(opened[2]->staging(Lane::kWorld)[5] == std::byte{42});
  for (std::size_t a = 0; a < 3; ++a) {
    CHECK(AliasDistance(reinterpret_cast<std::uintptr_t>(bases[a]),
                        reinterpret_cast<std::uintptr_t>(own[a]->heap())) == 0);
    for (std::size_t b = a + 1; b < 3; ++b) {
      CHECK(AliasDistance(reinterpret_cast<std::uintptr_t>(bases[a]),
                          reinterpret_cast<std::uintptr_t>(bases[b])) >= kHugePageBytes);
    }
  }
}

TEST_CASE("the lane of the process sets takes memory when there is a set, and only once") {
  const auto own = CreateOk(Identity(0));
  const auto bytes = [&own] {
    struct stat file{};
    REQUIRE(::fstat(own->fd(), &file) == 0);
    return static_cast<std::size_t>(file.st_blocks) * 512;
  };
  const std::size_t before = bytes();
  REQUIRE(own->CommitLane(Lane::kSets).ok());
  const std::size_t after = bytes();
  CHECK(after >= before + own->layout().staging_bytes + own->layout().payload_bytes);
  own->staging(Lane::kSets)[5] = std::byte{42};
  REQUIRE(own->CommitLane(Lane::kSets).ok());
  CHECK(own->staging(Lane::kSets)[5] == std::byte{42});
  CHECK(bytes() == after);
}

TEST_CASE("the owner cannot take memory away under its peers") {
  const auto own = CreateOk(Identity(0));
  CHECK(::ftruncate(own->fd(), 4096) != 0);
  CHECK(::fcntl(own->fd(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
}

TEST_CASE("files that are not a peer's arena are refused, and the rank is named") {
  const auto own = CreateOk(Identity(1));
  const auto message = [](const Result<std::unique_ptr<Arena>>& result) {
    CHECK(result.status().code() == StatusCode::kMismatch);
    CHECK(result.status().culprit_rank() == 1);
    return result.status().message();
  };
  const net::UniqueFd unsealed(::memfd_create("test", MFD_CLOEXEC));
  CHECK_THAT(message(OpenAs(Identity(0), 1, unsealed.get())),
             Contains("rank 1") && Contains("seal"));
  const net::UniqueFd empty(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  CHECK_THAT(message(OpenAs(Identity(0), 1, empty.get())), Contains("header"));

  CHECK_THAT(message(OpenAs(Identity(0, 3), 1, own->fd())), Contains("rank 1 of 2"));
  ArenaIdentity late = Identity(0);
  late.generation = 8;
  CHECK_THAT(message(OpenAs(late, 1, own->fd())), Contains("generation 7") && Contains("8"));
  ArenaIdentity other = Identity(0);
  other.staging_bytes = 131072;
  CHECK_THAT(message(OpenAs(other, 1, own->fd())),
             Contains("HVL_STAGING") && Contains("65536") && Contains("131072"));
  CHECK_THAT(message(Arena::Open(Duplicate(own->fd()), 1, Identity(0), 2 * kHugePageBytes)),
             Contains("expected"));
}

TEST_CASE("a header that claims more heap than the file has is refused") {
  const auto own = CreateOk(Identity(1));
  const std::uint64_t absurd = ~std::uint64_t{0} - 4096;
  // The fourth field; see ArenaHeader.
  REQUIRE(::pwrite(own->fd(), &absurd, sizeof(absurd), 24) == sizeof(absurd));
  CHECK(OpenAs(Identity(0), 1, own->fd()).status().code() == StatusCode::kMismatch);
}

TEST_CASE("limits of the process are errors that say which, not signals") {
  const auto message_under = [](int resource, std::size_t bytes, const char* expected) {
    return InChild([resource, bytes, expected] {
      const rlimit limit{bytes, bytes};
      if (::setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return 2;
      const auto arena = Arena::Create(Identity(0), kWordsBytes, kHeapBytes);
      const Status status = arena.status();
      return status.code() == StatusCode::kResourceExhausted &&
                     status.message().find(expected) != std::string::npos
                 ? 0
                 : 1;
    });
  };
  CHECK(message_under(RLIMIT_FSIZE, 1 << 20, "ulimit -f") == 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(message_under(RLIMIT_AS, std::size_t{100} << 20, "ulimit -v") == 0);
#endif
}

std::shared_ptr<SharedHeap> MakeHeap(std::size_t heap_bytes = kHeapBytes) {
  return std::make_shared<SharedHeap>(CreateOk(Identity(0), heap_bytes));
}

SharedBuffer AllocateOk(SharedHeap& heap, std::size_t bytes) {
  auto buffer = heap.Allocate(bytes);
  INFO(buffer.status().ToString());
  REQUIRE(buffer.ok());
  return *buffer;
}

bool IsZero(const SharedBuffer& buffer) {
  const auto* bytes = static_cast<const char*>(buffer.data);
  return std::count(bytes, bytes + buffer.bytes, 0) == static_cast<std::ptrdiff_t>(buffer.bytes);
}

TEST_CASE("buffers do not overlap, are zero even where one was before, and are page-aligned") {
  const auto heap = MakeHeap();
  void* first = nullptr;
  for (int round = 0; round < 3; ++round) {
    std::vector<SharedBuffer> buffers;
    for (const std::size_t bytes : {1, 5000, 0, 4096, 3000000}) {
      buffers.push_back(AllocateOk(*heap, bytes));
      CHECK(reinterpret_cast<std::uintptr_t>(buffers.back().data) % kPageBytes == 0);
      CHECK(IsZero(buffers.back()));
    }
    for (const SharedBuffer& buffer : buffers) {
      auto* const bytes = static_cast<char*>(buffer.data);
      CHECK(IsZero(buffer));  // no other buffer's pattern is here
      std::fill_n(bytes, buffer.bytes, 'x');
    }
    // Freed ranges are joined again: each round starts at the same place.
    if (round == 0) first = buffers[0].data;
    CHECK(buffers[0].data == first);
  }
}

TEST_CASE("equal buffers lie no multiple of 2^28 apart, whatever their size") {
  const auto heap = MakeHeap();
  const SharedBuffer a = AllocateOk(*heap, 8 * kPageBytes);
  const SharedBuffer b = AllocateOk(*heap, 8 * kPageBytes);
  CHECK(static_cast<std::byte*>(b.data) - static_cast<std::byte*>(a.data) == 9 * kPageBytes);
}

TEST_CASE("buffers freed in any order leave the whole heap free") {
  const auto heap = MakeHeap(std::size_t{4} << 20);
  std::vector<SharedBuffer> buffers;
  for (int index = 0; index < 20; ++index) buffers.push_back(AllocateOk(*heap, 100000));
  for (const std::size_t index : {3, 1, 2, 19, 0, 10, 12, 11}) buffers[index] = SharedBuffer();
  buffers.clear();
  AllocateOk(*heap, (std::size_t{4} << 20) - kPageBytes);
}

TEST_CASE("an exhausted heap and an absent one are different errors") {
  const auto heap = MakeHeap(std::size_t{4} << 20);
  CHECK(heap->Allocate(std::size_t{5} << 20).status().code() == StatusCode::kResourceExhausted);
  const SharedBuffer most = AllocateOk(*heap, std::size_t{3} << 20);
  const Status full = heap->Allocate(std::size_t{2} << 20).status();
  CHECK(full.code() == StatusCode::kResourceExhausted);
  CHECK_THAT(full.message(), Contains("free"));
  CHECK(MakeHeap(0)->Allocate(1).status().code() == StatusCode::kNotSupported);
}

TEST_CASE("buffers keep their memory when heap and arena have no other user") {
  SharedBuffer buffer;
  {
    const auto heap = MakeHeap();
    buffer = AllocateOk(*heap, 100000);
  }
  std::fill_n(static_cast<char*>(buffer.data), buffer.bytes, 'y');
  CHECK(static_cast<char*>(buffer.data)[99999] == 'y');
}

TEST_CASE("a forked child that drops a buffer does not take the parent's memory") {
  const auto heap = MakeHeap();
  SharedBuffer buffer = AllocateOk(*heap, 100000);
  std::fill_n(static_cast<char*>(buffer.data), buffer.bytes, 'z');
  CHECK(InChild([&buffer] {
          buffer = SharedBuffer();
          return 0;
        }) == 0);
  CHECK(static_cast<char*>(buffer.data)[50000] == 'z');
}

}  // namespace
}  // namespace hvl::collective
