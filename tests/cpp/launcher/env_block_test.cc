#include "launcher/env_block.h"

#include <catch2/catch.hpp>

#include <array>

namespace hvl::launcher {
namespace {

using Entries = std::vector<std::string>;

EnvBlock Block(Entries entries) {
  std::vector<char*> pointers;
  for (std::string& entry : entries) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  return EnvBlock(pointers.data());
}

TEST_CASE("entries are kept byte for byte, in order, whatever they look like") {
  const Entries odd = {"A=1",
                       "BASH_FUNC_f%%=() {  echo hi\n}",
                       "FOO.BAR=x=y",
                       "a-b=",
                       "novalue",
                       "=C:=weird",
                       "BYTES=\xff\xfe\x01",
                       "DOUBLE=1",
                       "DOUBLE=2",
                       "BIG=" + std::string(100000, 'x')};
  CHECK(Block(odd).entries() == odd);
}

TEST_CASE("no environment at all is an empty one") {
  CHECK(EnvBlock(nullptr).entries().empty());
  CHECK(EnvBlock(nullptr).Pointers() == std::vector<char*>{nullptr});
}

TEST_CASE("a name is looked up whole") {
  const EnvBlock env = Block({"PATHS=no", "PATH=/bin", "EMPTY="});
  CHECK(env.Get("PATH") == "/bin");
  CHECK(env.Get("EMPTY") == "");
  CHECK_FALSE(env.Get("PAT").has_value());
}

TEST_CASE("setting a name replaces all its entries and touches no other") {
  EnvBlock env = Block({"A=1", "AB=2", "A=3"});
  env.Set("A", "new=\nvalue");
  CHECK(env.entries() == Entries{"AB=2", "A=new=\nvalue"});
}

TEST_CASE("a default does not replace a value, not even an empty one") {
  EnvBlock env = Block({"A="});
  env.SetIfMissing("A", "1");
  env.SetIfMissing("B", "2");
  CHECK(env.entries() == Entries{"A=", "B=2"});
}

TEST_CASE("a pattern finds the names that it matches, and a name itself") {
  const EnvBlock env = Block({"NCCL_DEBUG=INFO", "a[1]=x", "EMPTY="});
  CHECK(env.HasMatch("NCCL_*"));
  CHECK(env.HasMatch("EMPT?"));
  CHECK(env.HasMatch("a[1]"));
  CHECK_FALSE(env.HasMatch("NCCL"));
  CHECK_FALSE(env.HasMatch("*INFO"));
  CHECK(IsPattern("NCCL_*"));
  CHECK_FALSE(IsPattern("NCCL_DEBUG"));
}

TEST_CASE("the pointers are the entries with a null at the end") {
  EnvBlock env = Block({"A=1", "B=2"});
  const std::vector<char*> pointers = env.Pointers();
  REQUIRE(pointers.size() == 3);
  CHECK(std::string(pointers[1]) == "B=2");
  CHECK(pointers[2] == nullptr);
}

}  // namespace
}  // namespace hvl::launcher
