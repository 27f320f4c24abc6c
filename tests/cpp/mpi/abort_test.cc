// What an abort leaves behind, as MPI cannot take back an operation. In programs of their own: no
// session is possible afterwards, and MPI_Finalize is left out.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <thread>

#include "csrc/base/str.h"
#include "tests/cpp/mpi/team.h"
#include "tests/support/ranks.h"

namespace hvl::mpi::test {
namespace {

namespace fs = std::filesystem;

// mpirun ends all ranks when one has left without MPI_Finalize: each says first what it has seen.
void LeaveTogether(int rank, int size) {
  std::cerr << Format("rank {} has seen the abort\n", rank) << std::flush;
  const auto file = [](int r) {
    return fs::temp_directory_path() / Format("hvl-mpi-abort.{}.{}", ::getppid(), r);
  };
  std::ofstream(file(rank)) << "done";
  const auto all_there = [&file, size] {
    for (int r = 0; r < size; ++r) {
      if (!fs::exists(file(r))) return false;
    }
    return true;
  };
  const auto end = std::chrono::steady_clock::now() + hvl::test::kHangLimit;
  while (!all_there() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
}

// Rank 0 waits for the communicator of a part that rank 1 does not come to; the others wait for
// rank 0 in an allreduce.
TEST_CASE("an abort over MPI ends every wait, and no session begins after that") {
  int rank = 0;
  int size = 0;
  {
    Team team;
    rank = team.rank();
    size = team.size();
    REQUIRE(size > 1);
    std::jthread aborter([&team] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // not needed, only likelier
      team.backend().Abort({StatusCode::kUnavailable, "rank 7 was killed", 7});
    });
    Status status;
    if (rank == 0) {
      const std::vector<int> part = {0, 1};
      status = team.backend().Split(part).value()->Barrier();
    } else {
      std::vector<float> values(100000, 1.0F);
      const collective::ReducePiece piece{values.data(), values.data(), 100000};
      status = team.backend().Allreduce({&piece, 1}, {.rank_count = size});
    }
    REQUIRE(status == Status(StatusCode::kUnavailable, "rank 7 was killed", 7));
    REQUIRE(team.backend().Barrier() == status);
  }
  const auto again = OpenPlugin().value()->CreateBackend(WithPlace({}), Logger());
  REQUIRE(again.status().code() == StatusCode::kNotSupported);
  REQUIRE_THAT(again.status().message(), Catch::Contains("rank 7 was killed") &&
                                             Catch::Contains("start the processes again"));
  LeaveTogether(rank, size);
}

}  // namespace
}  // namespace hvl::mpi::test
