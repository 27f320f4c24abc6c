// One checked, immutable Config made from the environment. `knobs.def` is the only list of knobs:
// it generates this struct's fields, the parser, `hvlrun --help`, docs/knobs.md and Python's
// read-only view.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/base/log.h"
#include "horovodlite/status.h"

namespace hvl::config {

/// Where strings come from. The process environment is read in one file only (env_source.cc).
class EnvSource {
 public:
  virtual ~EnvSource() = default;
  virtual std::optional<std::string> Get(std::string_view name) const = 0;
  /// All names, for finding misspelt HVL_* ones.
  virtual std::vector<std::string> Names() const = 0;
};

class ProcessEnv final : public EnvSource {
 public:
  std::optional<std::string> Get(std::string_view name) const override;
  std::vector<std::string> Names() const override;
};

class MapEnv final : public EnvSource {
 public:
  explicit MapEnv(std::map<std::string, std::string, std::less<>> values)
      : values_(std::move(values)) {}
  std::optional<std::string> Get(std::string_view name) const override;
  std::vector<std::string> Names() const override;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

enum class CpuOperations : std::uint8_t { kAuto, kLocal, kTcp, kMpi };
/// What to do about unnamed operations that ranks submit at different places of the program.
enum class UnnamedSites : std::uint8_t { kError, kWarn, kOff };
/// Whose variables tell a process its place where HVL_RANK does not (launch.h).
enum class Launcher : std::uint8_t {
  kAuto,
  kOpenMpi,
  kSlurm,
  kHydra,
  kTorchrun,
  kEnvironment,
  kNone,
};

struct Config {
  // A field per row of knobs.def; see there for meaning, unit, limits and defaults.
#define HVL_KNOB(field, type, kind, env, alias, flag, default_value, ...) \
  type field = default_value;
#include "csrc/config/knobs.def"
#undef HVL_KNOB

  /// Strict: a value that does not parse or is out of range is InvalidArgument naming the variable,
  /// the value, what is allowed and the default. HVL_<NAME> wins over its HOROVOD_<NAME> alias;
  /// both set and different is a warning. Unknown HVL_* names warn with the nearest known one, and
  /// so do Horovod's names that have no effect here, with the reason. An empty value counts as not
  /// set.
  ///
  /// Identity: nothing set = a world of one, unless FindLaunch (launch.h) finds more. Rank and size
  /// come together; so do the local and the cross pair. Without the local pair all ranks are taken
  /// to be on this host. Anything incomplete or contradictory is an error that says what is
  /// missing.
  ///
  /// `warnings` (may be null) receives complete sentences; who logs them chooses the rank.
  static Result<Config> Parse(const EnvSource& env, std::vector<std::string>* warnings);
};

/// A row of the table as data: for help texts, docs and bindings.
struct KnobInfo {
  std::string_view env_name;   ///< "HVL_FUSION_THRESHOLD"
  std::string_view alias;      ///< "HOROVOD_FUSION_THRESHOLD" or empty
  std::string_view flag;       ///< launcher flag that sets it, or empty
  std::string_view type_name;  ///< "bytes", "seconds", "bool", ...
  std::string default_text;    ///< as KnobText prints it
  std::string range_text;      ///< what is allowed, in words
  bool must_agree = false;     ///< compared between ranks when a session starts
  std::string_view help;       ///< one sentence
};
std::vector<KnobInfo> AllKnobs();
/// The value of a knob as text that parses back to the same value: for display and for comparing
/// must-agree knobs between ranks. `env_name` must be in the table.
std::string KnobText(const Config& config, std::string_view env_name);

}  // namespace hvl::config
