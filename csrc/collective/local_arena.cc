#include "csrc/collective/local_arena.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "csrc/base/check.h"
#include "csrc/base/errno_text.h"
#include "csrc/base/str.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U  // Linux 6.3
#endif

namespace hvl::collective {
namespace {

// First bytes of every arena.
struct ArenaHeader {
  std::uint64_t magic;
  std::uint64_t generation;
  std::uint64_t staging_bytes;
  std::uint64_t heap_bytes;
  std::int32_t rank;
  std::int32_t ranks;
  CpuMask cpus;
};
constexpr std::uint64_t kMagic = 0x314152414c564800;  // "\0HVLARA1"
constexpr std::size_t kHeaderBytes = RoundUp(sizeof(ArenaHeader), 2 * kLineBytes);

// The owner must not be able to take memory away under its peers (they would die by SIGBUS).
constexpr unsigned kRequiredSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Result<net::UniqueFd> MakeSealedFile(std::size_t bytes) {
  // memfd obeys the limit on file sizes, and by a signal.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      limit.rlim_cur < bytes) {
    return Status(StatusCode::kResourceExhausted,
                  Format("shared memory needs a file of {} bytes, but this process may have none "
                         "above {} bytes; raise the limit (ulimit -f)",
                         bytes, limit.rlim_cur));
  }
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = ::memfd_create("horovodlite", kFlags | MFD_NOEXEC_SEAL);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create("horovodlite", kFlags);  // older kernel
  net::UniqueFd file(fd);
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, kRequiredSeals | F_SEAL_SEAL) != 0) {
    return Status(
        StatusCode::kResourceExhausted,
        Format("cannot make a shared memory file of {} bytes: {}", bytes, ErrnoText(errno)));
  }
  return file;
}

// Maps the file at an address with the wanted residue: reserves more than enough, and gives back
// what lies around.
Result<std::byte*> MapAtResidue(int fd, std::size_t bytes, std::size_t residue) {
  const std::size_t reserved = bytes + kAliasBytes;
  void* const reservation =
      ::mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reservation == MAP_FAILED) {
    return Status(
        StatusCode::kResourceExhausted,
        Format("cannot reserve {} bytes of address space for shared memory: {}; raise the "
               "limit (ulimit -v)",
               reserved, ErrnoText(errno)));
  }
  auto* const begin = static_cast<std::byte*>(reservation);
  const auto address = reinterpret_cast<std::uintptr_t>(reservation);
  std::byte* const base = begin + (FirstWithResidue(address, residue) - address);
  void* const mapped =
      ::mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    ::munmap(begin, reserved);
    return Status(StatusCode::kResourceExhausted,
                  Format("cannot map {} bytes of shared memory: {}", bytes, ErrnoText(error)));
  }
  const auto head = static_cast<std::size_t>(base - begin);
  if (head > 0) ::munmap(begin, head);
  if (head < kAliasBytes) ::munmap(base + bytes, kAliasBytes - head);
  return base;
}

Status Foreign(int owner, std::string what) {
  return Status(StatusCode::kMismatch,
                Format("the shared memory of rank {} is not usable: {}", owner, what), owner);
}

Status CheckHeader(const ArenaHeader& header, int owner, const ArenaIdentity& identity) {
  const int world_rank = identity.first_rank + owner;
  if (header.magic != kMagic) return Foreign(world_rank, "it has no horovodlite header");
  if (header.rank != owner || header.ranks != identity.ranks) {
    return Foreign(world_rank, Format("its header says rank {} of {}, expected rank {} of {}",
                                      header.rank, header.ranks, owner, identity.ranks));
  }
  if (header.generation != identity.generation) {
    return Foreign(world_rank, Format("it belongs to generation {}, this rank is in {}",
                                      header.generation, identity.generation));
  }
  if (header.staging_bytes != identity.staging_bytes) {
    return Status(StatusCode::kMismatch,
                  Format("rank {} has {} bytes of staging memory, rank {} has {}; set HVL_STAGING "
                         "to the same value on all ranks",
                         world_rank, header.staging_bytes, identity.first_rank + identity.rank,
                         identity.staging_bytes),
                  world_rank);
  }
  return Status::Ok();
}

}  // namespace

CpuMask AllowedCpus() {
  CpuMask mask{};
  // Fails on machines with more than 1024 processors; an empty mask says "unknown".
  if (::sched_getaffinity(0, sizeof(mask), reinterpret_cast<cpu_set_t*>(mask.data())) != 0) {
    mask.fill(0);
  }
  return mask;
}

Result<std::unique_ptr<Arena>> Arena::Create(const ArenaIdentity& identity, std::size_t words_bytes,
                                             std::size_t heap_bytes) {
  const ArenaLayout layout = MakeArenaLayout(identity.ranks, kHeaderBytes + words_bytes,
                                             identity.staging_bytes, heap_bytes);
  HVL_ASSIGN_OR_RETURN(net::UniqueFd fd, MakeSealedFile(layout.total_bytes));
  HVL_ASSIGN_OR_RETURN(std::byte * base, MapAtResidue(fd.get(), layout.total_bytes,
                                                      ArenaResidue(identity.rank, identity.ranks)));
  std::unique_ptr<Arena> arena(new Arena(std::move(fd), base, layout));
  arena->AdviseHugePages();
  HVL_RETURN_IF_ERROR(arena->Commit(base, layout.lane(Lane::kWorld).payload_offset));
  HVL_RETURN_IF_ERROR(arena->CommitLane(Lane::kWorld));
  arena->cpus_ = AllowedCpus();
  new (base) ArenaHeader{.magic = kMagic,
                         .generation = identity.generation,
                         .staging_bytes = identity.staging_bytes,
                         .heap_bytes = layout.heap_bytes,
                         .rank = identity.rank,
                         .ranks = identity.ranks,
                         .cpus = arena->cpus_};
  return arena;
}

Result<std::unique_ptr<Arena>> Arena::Open(const net::UniqueFd& fd, int owner,
                                           const ArenaIdentity& identity, std::size_t words_bytes) {
  const int world_rank = identity.first_rank + owner;
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (static_cast<unsigned>(seals) & kRequiredSeals) != kRequiredSeals) {
    return Foreign(world_rank, "it is not sealed against shrinking");
  }
  ArenaHeader header{};
  struct stat file{};
  if (::pread(fd.get(), &header, sizeof(header), 0) != ssize_t{sizeof(header)} ||
      ::fstat(fd.get(), &file) != 0) {
    return Foreign(world_rank, "its header cannot be read");
  }
  HVL_RETURN_IF_ERROR(CheckHeader(header, owner, identity));
  const auto file_bytes = static_cast<std::size_t>(file.st_size);
  if (header.heap_bytes > file_bytes) return Foreign(world_rank, "its header exceeds the file");
  const ArenaLayout layout = MakeArenaLayout(identity.ranks, kHeaderBytes + words_bytes,
                                             identity.staging_bytes, header.heap_bytes);
  if (layout.total_bytes != file_bytes) {
    return Foreign(world_rank,
                   Format("it has {} bytes, expected {}", file_bytes, layout.total_bytes));
  }
  HVL_ASSIGN_OR_RETURN(std::byte * base, MapAtResidue(fd.get(), layout.total_bytes,
                                                      ArenaResidue(owner, identity.ranks)));
  std::unique_ptr<Arena> arena(new Arena(net::UniqueFd(), base, layout));
  arena->AdviseHugePages();
  arena->cpus_ = header.cpus;
  return arena;
}

Arena::~Arena() { ::munmap(base_, layout_.total_bytes); }

std::byte* Arena::words() const { return base_ + kHeaderBytes; }

// Advice: fewer page faults and address translations where the kernel offers it.
void Arena::AdviseHugePages() const {
  const std::size_t offset = layout_.lane(Lane::kWorld).staging_offset;
  ::madvise(base_ + offset, layout_.total_bytes - offset, MADV_HUGEPAGE);
}

Status Arena::CommitLane(Lane lane) {
  bool& committed = committed_[static_cast<std::size_t>(lane)];
  if (committed) return Status::Ok();
  HVL_RETURN_IF_ERROR(Commit(payload(lane, 0), layout_.payload_bytes));
  HVL_RETURN_IF_ERROR(Commit(staging(lane), layout_.staging_bytes));
  committed = true;
  return Status::Ok();
}

Status Arena::Commit(std::byte* begin, std::size_t bytes) {
  HVL_CHECK(fd_.valid(), "only the owner commits memory");
  if (bytes == 0) return Status::Ok();
  if (::madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return Status::Ok();
  int error = errno;
  if (error == EINVAL) {  // older kernel: allocates, but maps page by page on first use
    const auto offset = static_cast<off_t>(begin - base_);
    if (::fallocate(fd_.get(), 0, offset, static_cast<off_t>(bytes)) == 0) return Status::Ok();
    error = errno;
  }
  Release(begin, bytes);  // what was committed of it
  return Status(StatusCode::kResourceExhausted,
                Format("the system has no memory for {} bytes of shared memory: {}", bytes,
                       ErrnoText(error)));
}

void Arena::Release(std::byte* begin, std::size_t bytes) {
  HVL_CHECK(fd_.valid(), "only the owner releases memory");
  // Not by madvise, which refuses memory that the process has locked (mlockall).
  const int result = ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 static_cast<off_t>(begin - base_), static_cast<off_t>(bytes));
  HVL_CHECK(result == 0, ErrnoText(errno));
}

}  // namespace hvl::collective
