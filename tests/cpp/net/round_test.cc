#include "csrc/net/round.h"

#include <catch2/catch.hpp>
#include <vector>

namespace hvl::net {

TEST_CASE("a round tells who is missing, also in a very large world", "[round]") {
  Round round;
  REQUIRE(round.Enter(1, 1 << 20, "").ok());
  CHECK(round.MissingRanks() == "0, 2-1048575");
  CHECK_FALSE(round.complete());
}

TEST_CASE("a rank that left may come again", "[round]") {
  Round round;
  REQUIRE(round.Enter(0, 2, "old").ok());
  round.Leave(0);
  round.Leave(0);
  REQUIRE(round.Enter(0, 2, "new").ok());
  REQUIRE(round.Enter(1, 2, "other").ok());
  REQUIRE(round.complete());
  CHECK(round.TakeBlobs() == std::vector<std::string>{"new", "other"});
}

TEST_CASE("the table of a round is limited", "[round]") {
  Round round;
  const std::string blob(kMaxBlobBytes, 'x');
  const int fit = static_cast<int>(kMaxTableBytes / kMaxBlobBytes);
  for (int rank = 0; rank < fit; ++rank) REQUIRE(round.Enter(rank, 1000, blob).ok());
  CHECK(round.Enter(fit, 1000, blob).code() == StatusCode::kResourceExhausted);
  CHECK(round.Enter(fit + 1, 1000, "").ok());
}

}  // namespace hvl::net
