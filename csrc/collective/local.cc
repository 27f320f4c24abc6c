#include "csrc/collective/local.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "csrc/collective/local_arena.h"
#include "csrc/collective/local_backend.h"
#include "csrc/collective/local_board.h"
#include "csrc/collective/local_staged.h"

namespace hvl::collective {
namespace {

std::size_t DefaultHeapBytes(int ranks) {
  const auto pages = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES));
  std::size_t heap_bytes = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  rlimit addresses{};
  ::getrlimit(RLIMIT_AS, &addresses);  // RLIM_INFINITY is the highest value
  heap_bytes = ReservableHeapBytes(heap_bytes, addresses.rlim_cur, ranks);
  rlimit file{};
  ::getrlimit(RLIMIT_FSIZE, &file);  // an arena is a file; half of it for the heap
  return RoundDown(std::min<std::size_t>(heap_bytes, file.rlim_cur / 2), kPageBytes);
}

// A rank that spins while its peer has no processor to run on only keeps it from running.
bool EnoughCpus(const Arena& own, std::span<const std::unique_ptr<Arena>> peers) {
  CpuMask all = own.cpus();
  for (const std::unique_ptr<Arena>& peer : peers) {
    if (peer != nullptr) std::ranges::transform(all, peer->cpus(), all.begin(), std::bit_or<>());
  }
  std::size_t count = 0;
  for (const std::uint64_t word : all) count += static_cast<std::size_t>(std::popcount(word));
  return count == 0 || count >= peers.size();  // 0: unknown
}

}  // namespace

Result<std::unique_ptr<Backend>> CreateLocalBackend(net::Mesh& mesh, const LocalOptions& options,
                                                    const Logger& logger) {
  const std::vector<int>& hosts = mesh.hosts();
  const auto here = std::ranges::equal_range(hosts, hosts[static_cast<std::size_t>(mesh.rank())]);
  const int first_rank = static_cast<int>(here.begin() - hosts.begin());
  const ArenaIdentity identity{.rank = mesh.rank() - first_rank,
                               .ranks = static_cast<int>(here.size()),
                               .first_rank = first_rank,
                               .generation = mesh.generation(),
                               .staging_bytes = options.staging_bytes};
  if (identity.ranks > kMaxLocalRanks) {
    return Status(StatusCode::kNotSupported,
                  Format("{} ranks on one host; shared memory serves at most {}", identity.ranks,
                         kMaxLocalRanks));
  }
  if (options.staging_bytes < LeastStagingBytes(identity.ranks)) {
    return Status(StatusCode::kInvalidArgument,
                  Format("{} bytes of staging memory; at least {} are needed (HVL_STAGING)",
                         options.staging_bytes, LeastStagingBytes(identity.ranks)));
  }
  const std::size_t words_bytes = Board::WordsBytes(identity.ranks);
  const std::size_t heap_bytes = options.heap_bytes.value_or(DefaultHeapBytes(identity.ranks));
  HVL_ASSIGN_OR_RETURN(std::shared_ptr<Arena> own,
                       Arena::Create(identity, words_bytes, heap_bytes));
  Board::Initialise(*own, identity.ranks);
  std::vector<std::unique_ptr<Arena>> peers(static_cast<std::size_t>(identity.ranks));
  if (identity.ranks > 1) {
    HVL_ASSIGN_OR_RETURN(const std::vector<net::UniqueFd> fds, mesh.ExchangeFds(own->fd()));
    for (int peer = 0; peer < identity.ranks; ++peer) {
      if (peer == identity.rank) continue;
      const auto index = static_cast<std::size_t>(peer);
      const net::UniqueFd& fd = fds[static_cast<std::size_t>(first_rank) + index];
      HVL_ASSIGN_OR_RETURN(peers[index], Arena::Open(fd, peer, identity, words_bytes));
    }
  }
  const bool may_spin = EnoughCpus(*own, peers);
  const Duration spin = may_spin ? options.spin : Duration::zero();
  HVL_LOG(logger, kDebug, "collective",
          "shared memory: kernels={} staging_bytes={} heap_bytes={} spin_us={}{}",
          tensor::KernelName(), options.staging_bytes, heap_bytes, spin.count() / 1000,
          may_spin ? "" : " (more ranks than processors)");
  std::unique_ptr<Backend> backend = std::make_unique<LocalBackend>(
      identity.rank, std::move(own), std::move(peers), spin, options.group_ends, first_rank);
  return backend;
}

}  // namespace hvl::collective
