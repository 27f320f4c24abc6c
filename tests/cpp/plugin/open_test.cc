// Opening plug-ins: small files of each kind that can go wrong.
#include "csrc/plugin/open.h"

#include <catch2/catch.hpp>

#include "tests/cpp/plugin/greeter.h"

namespace hvl::plugin {
namespace {

using Catch::Contains;
using test::Greeter;

std::string FileOf(const std::string& name) {
  return std::string(HVL_TEST_FOLDER) + "/lib" + name + ".so";
}

std::string ErrorOf(const std::string& path) {
  const Result<Greeter*> opened = Open<Greeter>(path);
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.status().code() == StatusCode::kNotSupported);
  CHECK_THAT(opened.status().message(), Contains(path) && Contains("reinstall horovodlite"));
  return opened.status().message();
}

TEST_CASE("a plug-in of this build opens, as often as one likes, and is always the same") {
  const Result<Greeter*> first = Open<Greeter>(FileOf("greeter_good"));
  INFO(first.status().ToString());
  REQUIRE(first.ok());
  CHECK(first.value()->Greet("rank 3") == "hello, rank 3");
  CHECK(Open<Greeter>(FileOf("greeter_good")).value() == first.value());
}

TEST_CASE("a plug-in of another build is refused with both versions") {
  const std::string message = ErrorOf(FileOf("greeter_old"));
  CHECK_THAT(message, Contains("built for horovodlite 0.0.1, interfaces 00000000, GNU 1.0"));
  CHECK_THAT(message, Contains(BuildVersion()));
}

TEST_CASE("a plug-in for something else is refused with both names") {
  CHECK_THAT(ErrorOf(FileOf("greeter_other")),
             Contains("it offers 'farewell', and 'greeter' was wanted"));
}

TEST_CASE("a library that is no plug-in is refused") {
  CHECK_THAT(ErrorOf(FileOf("greeter_stranger")),
             Contains("no plug-in of horovodlite") && Contains("hvl_plugin_entry"));
}

TEST_CASE("what the dynamic loader says is part of the error") {
  CHECK_THAT(ErrorOf(FileOf("greeter_unresolved")), Contains("hvl_test_nobody_has_this"));
  CHECK_THAT(ErrorOf(FileOf("greeter_missing")), Contains("No such file"));
}

TEST_CASE("only the path that is asked for is opened") {
  CHECK_THAT(ErrorOf("/nowhere/libgreeter_good.so"), Contains("No such file"));
}

TEST_CASE("plug-ins are looked for next to this program") {
  CHECK_THAT(DefaultFolder(), Catch::StartsWith("/") && Catch::EndsWith("/plugins"));
}

TEST_CASE("the version names release, interfaces and compiler") {
  CHECK_THAT(BuildVersion(), Contains(HVL_VERSION) && Contains("interfaces "));
}

}  // namespace
}  // namespace hvl::plugin
