// Which variables a rank on another host gets from where.
#include "launcher/host_env.h"

#include <catch2/catch.hpp>

namespace hvl::launcher {
namespace {

using Entries = std::vector<std::string>;

TEST_CASE("what says something about the head's host stays there") {
  const EnvBlock env(Entries{"PATH=/bin", "HOME=/root", "SSH_CONNECTION=a", "SLURM_PROCID=0",
                             "HOMEPAGE=x", "BASH_FUNC_f%%=() {\n}", "odd entry"});
  CHECK(WithoutHostVariables(env, {}).entries() ==
        Entries{"PATH=/bin", "HOMEPAGE=x", "BASH_FUNC_f%%=() {\n}", "odd entry"});
}

TEST_CASE("what the user has set for all ranks goes everywhere") {
  const EnvBlock env(Entries{"HOME=/root", "USER=root"});
  CHECK(WithoutHostVariables(env, {{"HOME", "/shared"}}).entries() == Entries{"HOME=/root"});
}

TEST_CASE("a host adds its own, and replaces nothing") {
  EnvBlock env(Entries{"PATH=/bin", "HOME=/shared"});
  AddHostVariables(EnvBlock(Entries{"PATH=/usr/bin", "HOME=/home/me", "USER=me", "odd"}), &env);
  CHECK(env.entries() == Entries{"PATH=/bin", "HOME=/shared", "USER=me"});
}

}  // namespace
}  // namespace hvl::launcher
