// What processes of an MPI launcher tell each other before they meet. The meeting itself is tested
// by tests/launcher/test_mpi_start.py, on several hosts.
#include "csrc/session/mpi_meeting.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace hvl::session {
namespace {

MpiGreeting Greeting(int rank, const std::string& host, const std::string& address) {
  return {.rank = rank, .host_id = host, .job_id = "j", .addresses = {{address, 24}}};
}

TEST_CASE("a greeting arrives as it was sent") {
  const MpiGreeting full{.rank = 7,
                         .host_id = "boot 4026531840",
                         .job_id = "0f",
                         .addresses = {{"10.0.0.1", 8}, {"fd00::1", 64}}};
  for (const MpiGreeting& greeting : {full, MpiGreeting()}) {
    const auto decoded = DecodeGreeting(EncodeGreeting(greeting));
    REQUIRE(decoded.ok());
    CHECK(*decoded == greeting);
  }
}

TEST_CASE("other bytes than a greeting are a mismatch") {
  const std::string good = EncodeGreeting(Greeting(1, "a", "10.0.0.1"));
  std::vector<std::string> bad = {"",
                                  "\n",
                                  "hvl mpi 1\n",
                                  "hvl mpi 1\nx\n\n\n",
                                  "hvl mpi 1\n-1\n\n\n",
                                  "hvl mpi 1\n0\n\n\n10.0.0.1\n",
                                  "hvl mpi 1\n0\n\n\n10.0.0.1/x\n",
                                  "hvl mpi 2" + good.substr(9),
                                  std::string(100, '\0')};
  // The line that is cut, or its end.
  for (std::size_t cut : {std::size_t{1}, std::size_t{3}}) {
    bad.push_back(good.substr(0, good.size() - cut));
  }
  for (const std::string& bytes : bad) {
    INFO(bytes);
    CHECK(DecodeGreeting(bytes).status().code() == StatusCode::kMismatch);
  }
}

TEST_CASE("a rank is reached where its host is, whatever the order of MPI's ranks") {
  const std::vector<MpiGreeting> all = {Greeting(3, "b", "10.0.0.2"), Greeting(0, "a", "10.0.0.1"),
                                        Greeting(2, "b", "10.0.0.2"), Greeting(1, "a", "10.0.0.1")};
  CHECK(AddressAmong(all, all[0]) == "10.0.0.2");
  CHECK(AddressAmong(all, all[3]) == "10.0.0.1");
}

TEST_CASE("ranks of one host need no address") {
  const std::vector<MpiGreeting> all = {Greeting(0, "a", "10.0.0.1"), Greeting(1, "a", "10.0.0.1")};
  CHECK(AddressAmong(all, all[0]).empty());
}

}  // namespace
}  // namespace hvl::session
