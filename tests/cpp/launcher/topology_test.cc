// Cores and nodes, from a folder that looks like /sys/devices/system.
#include "launcher/topology.h"

#include <unistd.h>

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

namespace fs = std::filesystem;

/// A folder of files that goes away with this object.
class FakeSystem {
 public:
  FakeSystem() {
    std::string name = fs::temp_directory_path() / "hvl-topology-XXXXXX";
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    root_ = name;
  }
  ~FakeSystem() { fs::remove_all(root_); }
  FakeSystem(const FakeSystem&) = delete;
  FakeSystem& operator=(const FakeSystem&) = delete;

  void Write(const std::string& path, const std::string& content) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << content << "\n";
  }
  /// Two nodes of two cores of two threads, numbered as servers do: second threads come last.
  void WriteTwoNodes() const {
    Write("node/online", "0-1");
    Write("node/node0/cpulist", "0-1,4-5");
    Write("node/node1/cpulist", "2-3,6-7");
    for (int cpu = 0; cpu < 8; ++cpu) {
      Write(Format("cpu/cpu{}/topology/thread_siblings_list", cpu),
            Format("{},{}", cpu % 4, cpu % 4 + 4));
    }
  }
  std::string path() const { return root_; }

 private:
  fs::path root_;
};

TEST_CASE("hardware threads are put together to cores, cores of a node side by side") {
  const FakeSystem system;
  system.WriteTwoNodes();
  const Topology cores = ReadTopology(system.path(), {0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(cores == Topology{{0, {0, 4}}, {0, {1, 5}}, {1, {2, 6}}, {1, {3, 7}}});
  CHECK(NodeCount(cores) == 2);
}

TEST_CASE("only processors that may be used count") {
  const FakeSystem system;
  system.WriteTwoNodes();
  CHECK(ReadTopology(system.path(), {3, 5, 7}) == Topology{{0, {5}}, {1, {3, 7}}});
}

TEST_CASE("a system that tells nothing has one node and a core per processor") {
  const FakeSystem system;
  CHECK(ReadTopology(system.path(), {1, 2}) == Topology{{0, {1}}, {0, {2}}});
  CHECK(ReadTopology(system.path(), {}).empty());
}

}  // namespace
}  // namespace hvl::launcher
