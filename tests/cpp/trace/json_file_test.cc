// JsonArrayFile: complete after every write; errors name path and reason.
#include "csrc/trace/json_file.h"

#include <random>

#include "tests/cpp/trace/trace_file.h"

namespace hvl::trace {
namespace {

using nlohmann::json;

TEST_CASE("the file is a complete array after every flush, whatever the lengths") {
  const unsigned seed = Catch::rngSeed();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const ScratchDir dir;
  auto file = JsonArrayFile::Create(dir / "a.json", "0");
  REQUIRE(file.ok());
  CHECK(ParseFile(dir / "a.json") == json::array({0}));
  json expected = {0};
  for (int i = 1; i < 500; ++i) {
    const std::size_t length = random() % (i % 10 == 0 ? JsonArrayFile::kMaxElementBytes - 1 : 200);
    expected.push_back(std::string(length, 'x'));
    REQUIRE(file->Append(expected.back().dump()).ok());
    if (random() % 3 == 0) {
      REQUIRE(file->Flush().ok());
      CHECK((ParseFile(dir / "a.json") == expected));
    }
  }
  REQUIRE(file->Close().ok());
  CHECK((ParseFile(dir / "a.json") == expected));
}

TEST_CASE("elements that fill blocks to the last byte fit") {
  for (std::size_t rest = 0; rest < 12; ++rest) {
    const ScratchDir dir;
    auto file = JsonArrayFile::Create(dir / "a.json", "0");
    REQUIRE(file.ok());
    json expected = {0};
    for (int i = 0; i < 3; ++i) {
      expected.push_back(std::string(JsonArrayFile::kMaxElementBytes - 2 - rest, 'x'));
      REQUIRE(file->Append(expected.back().dump()).ok());
      REQUIRE(file->Flush().ok());
      CHECK((ParseFile(dir / "a.json") == expected));
    }
  }
}

TEST_CASE("what is appended is held back until the flush or a full block") {
  const ScratchDir dir;
  auto file = JsonArrayFile::Create(dir / "a.json", "0");
  REQUIRE(file.ok());
  REQUIRE(file->Append("1").ok());
  CHECK(ParseFile(dir / "a.json") == json::array({0}));
  REQUIRE(file->Flush().ok());
  CHECK(ParseFile(dir / "a.json") == json::array({0, 1}));
}

TEST_CASE("a longer file of an earlier run leaves no rest") {
  const ScratchDir dir;
  std::ofstream(dir / "a.json") << std::string(10000, 'x');
  REQUIRE(JsonArrayFile::Create(dir / "a.json", "1").ok());
  CHECK(ParseFile(dir / "a.json") == json::array({1}));
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
  const auto file = JsonArrayFile::Create("/dev/full", "1");
  REQUIRE_FALSE(file.ok());
  CHECK_THAT(file.status().message(),
             Catch::Contains("cannot write") && Catch::Contains("No space left"));
}

}  // namespace
}  // namespace hvl::trace
