// Finds the ranks of a session among the processes of MPI.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "horovodlite/status.h"

namespace hvl::mpi {

/// What each process of MPI tells the others. Plain bytes on the wire.
struct Card {
  std::uint64_t session = 0;
  std::int32_t rank = 0;
  std::int32_t size = 0;
};

std::uint64_t SessionNumber(std::string_view session);

/// `cards` by MPI's rank. MPI's rank of each rank of `own`'s session; Mismatch, naming the ranks
/// that are missing or there twice, when they are not exactly one each.
Result<std::vector<int>> FindRanks(std::span<const Card> cards, const Card& own);

}  // namespace hvl::mpi
