// JsonArrayFile: complete after every write; errors name path and reason.
#include "csrc/trace/json_file.h"

#include "tests/cpp/trace/trace_file.h"

namespace hvl::trace {
namespace {

TEST_CASE("the file is a complete array after every write") {
  const ScratchDir dir;
  auto file = JsonArrayFile::Create(dir / "a.json", "0");
  REQUIRE(file.ok());
  CHECK(ParseFile(dir / "a.json") == nlohmann::json::array({0}));
  nlohmann::json expected = {0};
  for (int i = 1; i < 2000; ++i) {
    REQUIRE(file->Append(",\n" + std::to_string(i)).ok());
    expected.push_back(i);
    if (i % 100 == 0) CHECK(ParseFile(dir / "a.json") == expected);
  }
  REQUIRE(file->Close().ok());
  CHECK(ParseFile(dir / "a.json") == expected);
}

TEST_CASE("a longer file of an earlier run leaves no rest") {
  const ScratchDir dir;
  std::ofstream(dir / "a.json") << std::string(10000, 'x');
  REQUIRE(JsonArrayFile::Create(dir / "a.json", "1").ok());
  CHECK(ParseFile(dir / "a.json") == nlohmann::json::array({1}));
}

TEST_CASE("a file that cannot be created is Unavailable with path and reason") {
  const ScratchDir dir;
  const auto file = JsonArrayFile::Create(dir / "no/such/dir.json", "1");
  REQUIRE_FALSE(file.ok());
  CHECK(file.status().code() == StatusCode::kUnavailable);
  CHECK_THAT(file.status().message(), Catch::StartsWith("cannot open timeline file '") &&
                                          Catch::Contains("no/such/dir.json") &&
                                          Catch::EndsWith(": No such file or directory"));
}

TEST_CASE("a full disk is reported when it happens") {
  auto file = JsonArrayFile::Create("/dev/full", "1");
  REQUIRE_FALSE(file.ok());
  CHECK_THAT(file.status().message(),
             Catch::Contains("cannot write") && Catch::Contains("No space left"));
}

}  // namespace
}  // namespace hvl::trace
