// Finding an MPI library and the plug-in for it. The library is a small one of these tests, so that
// they run where there is no MPI.
#include "csrc/plugin/mpi_library.h"

#include <catch2/catch.hpp>

namespace hvl::plugin {
namespace {

using Catch::Contains;

const std::string kFolder = HVL_TEST_FOLDER;
const std::string kFake = kFolder + "/libmpi.so.99";

std::string ErrorOf(const Status& status) {
  CHECK(status.code() == StatusCode::kNotSupported);
  return status.message();
}

TEST_CASE("a build without plug-ins says so, and how to get one") {
  CHECK(MpiFamilies("/nowhere").empty());
  CHECK_THAT(ErrorOf(OpenMpi("/nowhere", "", Logger()).status()),
             Contains("no plug-in for MPI (none in /nowhere)") && Contains("libopenmpi-dev"));
}

// One process has one MPI: the order of these matters, so they are one test.
TEST_CASE("the MPI of a process is the one that was named, and stays it") {
  CHECK_THAT(ErrorOf(OpenMpiLibrary(kFolder + "/libno.so").status()),
             Contains("libno.so cannot be loaded") && Contains("No such file"));
  CHECK_THAT(ErrorOf(OpenMpiLibrary(kFolder + "/libgreeter_stranger.so").status()),
             Contains("no MPI library: it has no MPI_Init_thread"));

  const Result<MpiLibrary> named = OpenMpiLibrary(kFake);
  INFO(named.status().ToString());
  REQUIRE(named.ok());
  CHECK(named.value().path == kFake);
  CHECK(named.value().family == "mpich");  // it has none of Open MPI's objects
  CHECK(named.value().version == "Fake MPI 1.0");

  const Result<MpiLibrary> found = OpenMpiLibrary("");
  REQUIRE(found.ok());
  CHECK(found.value().path == kFake);

  CHECK_THAT(ErrorOf(OpenMpiLibrary(kFolder + "/libno.so").status()),
             Contains("HVL_MPI_LIBRARY=" + kFolder + "/libno.so") && Contains(kFake));

  SECTION("a plug-in for another kind of MPI is not enough") {
    CHECK(MpiFamilies(kFolder + "/plugins") == std::vector<std::string>{"openmpi"});
    CHECK_THAT(ErrorOf(OpenMpi(kFolder + "/plugins", "", Logger()).status()),
               Contains(kFake + " (Fake MPI 1.0)") && Contains("libhvl_mpi_mpich.so") &&
                   Contains("this build has only openmpi"));
  }
}

}  // namespace
}  // namespace hvl::plugin
