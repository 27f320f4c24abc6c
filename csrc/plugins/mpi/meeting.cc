#include "csrc/plugins/mpi/meeting.h"

#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"

namespace hvl::mpi {

std::uint64_t SessionNumber(std::string_view session) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const char c : session) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

Result<std::vector<int>> FindRanks(std::span<const Card> cards, const Card& own) {
  constexpr int kNobody = -1;
  std::vector<int> found(static_cast<std::size_t>(own.size), kNobody);
  for (std::size_t place = 0; place < cards.size(); ++place) {
    const Card& card = cards[place];
    if (card.session != own.session || card.rank < 0 || card.rank >= own.size) continue;
    int& mpi_rank = found[static_cast<std::size_t>(card.rank)];
    if (mpi_rank != kNobody) {
      return Status(StatusCode::kMismatch,
                    Format("ranks {} and {} of MPI_COMM_WORLD both say that they are rank {} here; "
                           "start each process once, with mpirun",
                           mpi_rank, place, card.rank),
                    card.rank);
    }
    mpi_rank = static_cast<int>(place);
  }
  std::vector<int> missing;
  for (int rank = 0; rank < own.size; ++rank) {
    if (found[static_cast<std::size_t>(rank)] == kNobody) missing.push_back(rank);
  }
  if (missing.empty()) return found;
  return Status(StatusCode::kMismatch,
                Format("MPI_COMM_WORLD has {} processes, but ranks {} of the {} here are not among "
                       "them; start all of them with one mpirun of the MPI that is loaded",
                       cards.size(), RankList(missing), own.size),
                missing.front());
}

}  // namespace hvl::mpi
