#include "launcher/command.h"

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

namespace fs = std::filesystem;

/// A folder with a program "run", a text "text", and a folder "dir"; removed at the end.
class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "hvl-command-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
    std::ofstream(path_ / "run") << "#!/bin/sh\n";
    fs::permissions(path_ / "run", fs::perms::owner_all);
    std::ofstream(path_ / "text.py") << "pass\n";
    fs::create_directory(path_ / "dir");
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string operator/(const char* name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST_CASE("a program is found in PATH, in the order of its folders") {
  const Folder first;
  const Folder second;
  std::string found;
  CHECK(FindProgram("run", first.path() + ":" + second.path(), &found).exit_code == 0);
  CHECK(found == first / "run");
  CHECK(FindProgram("run", "/nonexistent::" + second.path(), &found).exit_code == 0);
  CHECK(found == second / "run");
}

TEST_CASE("a name with a slash is taken as it is") {
  const Folder folder;
  std::string found;
  CHECK(FindProgram(folder / "run", "", &found).exit_code == 0);
  CHECK(found == folder / "run");
}

TEST_CASE("what does not exist is 127, what cannot be executed is 126") {
  const Folder folder;
  std::string found;
  CHECK(FindProgram("hvl-no-such-program", folder.path(), &found).exit_code == kExitNotFound);
  CHECK(FindProgram(folder / "missing", "", &found).exit_code == kExitNotFound);
  CHECK(FindProgram("", folder.path(), &found).exit_code == kExitNotFound);
  CHECK(FindProgram(folder / "dir", "", &found).exit_code == kExitCannotExec);
  CHECK(FindProgram("text.py", folder.path(), &found).exit_code == kExitCannotExec);
  const Refusal script = FindProgram(folder / "text.py", "", &found);
  CHECK(script.exit_code == kExitCannotExec);
  CHECK_THAT(script.message, Catch::Contains("python " + folder / "text.py"));
}

}  // namespace
}  // namespace hvl::launcher
