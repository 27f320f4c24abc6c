#include "launcher/config_file.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/config/env_names.h"
#include "launcher/compat_options.h"
#include "launcher/errors.h"
#include "launcher/knob_flags.h"

namespace hvl::launcher {
namespace {

/// A key of the file and the option of the command line that it stands for.
struct Key {
  std::string_view path;
  std::string_view option;
  bool opposite = false;  // "true" switches the option off
};

constexpr std::string_view kController = "controller";  // its values are options

constexpr auto kKeys = std::to_array<Key>({
    {"params.fusion_threshold_mb", "--fusion-threshold-mb"},
    {"params.cycle_time_ms", "--cycle-time-ms"},
    {"params.cache_capacity", "--cache-capacity"},
    {"params.hierarchical_allreduce", "--hierarchical-allreduce"},
    {"params.hierarchical_allgather", "--hierarchical-allgather"},
    {"params.torus_allreduce", "--torus-allreduce"},
    {"autotune.enabled", "--autotune"},
    {"autotune.log_file", "--autotune-log-file"},
    {"autotune.warmup_samples", "--autotune-warmup-samples"},
    {"autotune.steps_per_sample", "--autotune-steps-per-sample"},
    {"autotune.bayes_opt_max_samples", "--autotune-bayes-opt-max-samples"},
    {"autotune.gaussian_process_noise", "--autotune-gaussian-process-noise"},
    {"timeline.filename", "--timeline-filename"},
    {"timeline.mark_cycles", "--timeline-mark-cycles"},
    {"stall_check.enabled", "--no-stall-check", true},
    {"stall_check.warning_time_seconds", "--stall-check-warning-time-seconds"},
    {"stall_check.shutdown_time_seconds", "--stall-check-shutdown-time-seconds"},
    {"library_options.mpi_threads_disable", "--mpi-threads-disable"},
    {"library_options.mpi_args", "--mpi-args"},
    {"library_options.tcp", "--tcp"},
    {"library_options.binding_args", "--binding-args"},
    {"library_options.num_nccl_streams", "--num-nccl-streams"},
    {"library_options.thread_affinity", "--thread-affinity"},
    {"library_options.gloo_timeout_seconds", "--gloo-timeout-seconds"},
    {"logging.level", "--log-level"},
    {"logging.with_timestamp", "--log-without-timestamp", true},
    {"logging.hide_timestamp", "--log-without-timestamp"},
});

std::string_view SectionOf(const Key& key) { return key.path.substr(0, key.path.find('.')); }
std::string_view LeafOf(const Key& key) { return key.path.substr(key.path.find('.') + 1); }

bool IsSection(std::string_view name) {
  return std::any_of(kKeys.begin(), kKeys.end(),
                     [name](const Key& key) { return SectionOf(key) == name; });
}

/// What the writer of an unknown key may have meant, or nothing. A known key that stands in the
/// wrong section is the nearest of all.
std::string_view Nearest(const std::string& path) {
  std::string_view nearest;
  std::size_t limit = std::max<std::size_t>(2, path.size() / 4);
  const auto consider = [&](std::string_view candidate, std::size_t distance) {
    if (distance > limit || (!nearest.empty() && distance == limit)) return;
    nearest = candidate;
    limit = distance;
  };
  const std::string_view leaf = std::string_view(path).substr(path.find('.') + 1);
  for (const Key& key : kKeys) {
    if (LeafOf(key) == leaf) consider(key.path, 0);
    consider(key.path, config::EditDistance(path, key.path));
    consider(SectionOf(key), config::EditDistance(path, SectionOf(key)));
  }
  consider(kController, config::EditDistance(path, kController));
  return nearest;
}

class Reader {
 public:
  Reader(std::string_view name, std::span<const std::string> given) : name_(name), given_(given) {}

  Status Read(const YAML::Node& root) {
    if (root.IsNull()) return Status::Ok();
    HVL_RETURN_IF_ERROR(RequireMap(root, "the file"));
    HVL_RETURN_IF_ERROR(RequireUnique(root, ""));
    for (const auto& entry : root) {
      const std::string name = entry.first.Scalar();
      if (name == kController) {
        HVL_RETURN_IF_ERROR(ReadController(entry.second));
      } else if (IsSection(name)) {
        HVL_RETURN_IF_ERROR(ReadSection(name, entry.second));
      } else {
        return Unknown(entry.first, name);
      }
    }
    return Status::Ok();
  }

  FileSettings Take() { return std::move(settings_); }

 private:
  std::string Place(const YAML::Node& node) const {
    return Format("{}:{}", name_, node.Mark().line + 1);
  }

  Status Bad(const YAML::Node& node, std::string_view problem) const {
    return Invalid(Format("{}: {}", Place(node), problem));
  }

  Status RequireMap(const YAML::Node& node, std::string_view what) const {
    if (node.IsMap()) return Status::Ok();
    return Bad(node, Format("{} has no keys: expected lines like 'name: value'", what));
  }

  /// The library would keep both of two equal keys.
  Status RequireUnique(const YAML::Node& map, std::string_view section) const {
    std::set<std::string> seen;
    for (const auto& entry : map) {
      if (!entry.first.IsScalar()) return Bad(entry.first, "a key must be a name");
      if (seen.insert(entry.first.Scalar()).second) continue;
      return Bad(entry.first, Format("{}{} is there twice", section, entry.first.Scalar()));
    }
    return Status::Ok();
  }

  Status Unknown(const YAML::Node& node, const std::string& path) const {
    const std::string_view nearest = Nearest(path);
    return Bad(node, nearest.empty() ? Format("unknown key {}; docs/launcher.md lists all", path)
                                     : Format("unknown key {}; did you mean {}?", path, nearest));
  }

  Status ReadController(const YAML::Node& value) {
    if (value.IsNull() || IsGiven("--gloo") || IsGiven("--mpi")) return Status::Ok();
    if (!value.IsScalar()) return Bad(value, "controller: expected gloo, mpi or jsrun");
    const std::string option = "--" + value.Scalar();
    settings_.mpi.wanted = option == "--mpi";
    if (option == "--gloo" || option == "--mpi") return Status::Ok();
    for (const CompatOption& row : kNotYetOptions) {
      if (row.names != option || row.value != CompatValue::kNone) continue;
      return NotSupportedYet(Format("{}: controller: {}", Place(value), value.Scalar()), row);
    }
    return Bad(value, Format("controller: '{}' is not valid: expected gloo, mpi or jsrun",
                             value.Scalar()));
  }

  Status ReadSection(const std::string& section, const YAML::Node& map) {
    if (map.IsNull()) return Status::Ok();
    HVL_RETURN_IF_ERROR(RequireMap(map, section));
    HVL_RETURN_IF_ERROR(RequireUnique(map, section + "."));
    for (const auto& entry : map) {
      const std::string path = Format("{}.{}", section, entry.first.Scalar());
      const auto key = std::find_if(kKeys.begin(), kKeys.end(),
                                    [&path](const Key& known) { return known.path == path; });
      if (key == kKeys.end()) return Unknown(entry.first, path);
      if (entry.second.IsNull()) continue;
      if (!entry.second.IsScalar()) return Bad(entry.second, Format("{} needs one value", path));
      HVL_RETURN_IF_ERROR(ReadValue(*key, entry.second));
    }
    return Status::Ok();
  }

  Status ReadValue(const Key& key, const YAML::Node& value) {
    for (const KnobFlag& flag : KnobFlags()) {
      if (flag.knob.flag == key.option) return ReadKnob(key, flag, value);
    }
    const auto is_meant = [&key](const CompatOption& option) {
      return CompatName(option) == key.option;
    };
    const auto of_mpi = std::find_if(kMpiOptions.begin(), kMpiOptions.end(), is_meant);
    if (of_mpi != kMpiOptions.end()) return ReadOfMpi(key, *of_mpi, value);
    const auto row = std::find_if(kNoEffectOptions.begin(), kNoEffectOptions.end(), is_meant);
    HVL_CHECK(row != kNoEffectOptions.end(), Format("{} stands for no option", key.path));
    return ReadWithoutEffect(key, *row, value);
  }

  Status ReadKnob(const Key& key, const KnobFlag& flag, const YAML::Node& value) {
    std::string text = value.Scalar();
    if (flag.is_switch) {
      HVL_ASSIGN_OR_RETURN(const bool on, Switch(key, value));
      text.assign(1, on ? '1' : '0');
    }
    Result<std::vector<EnvSetting>> settings = KnobSettings(flag, text);
    if (!settings.ok()) {
      return Bad(value, Format("{}: {}", key.path, settings.status().message()));
    }
    settings_.knobs.push_back(*std::move(settings));
    return Status::Ok();
  }

  Status ReadOfMpi(const Key& key, const CompatOption& row, const YAML::Node& value) {
    if (row.value == CompatValue::kNone) {
      HVL_ASSIGN_OR_RETURN(const bool on, Switch(key, value));
      if (!on) return Status::Ok();
    }
    if (IsGiven(key.option) || value.Scalar().empty()) return Status::Ok();
    const std::string what = Format("{}: {}", Place(value), key.path);
    settings_.mpi.warnings.push_back(NoEffect(what, row));
    TakeMpiOption(key.option, value.Scalar(), &settings_.mpi);
    return Status::Ok();
  }

  Status ReadWithoutEffect(const Key& key, const CompatOption& row, const YAML::Node& value) {
    if (row.value == CompatValue::kNone) {
      HVL_ASSIGN_OR_RETURN(const bool on, Switch(key, value));
      if (!on) return Status::Ok();
    }
    const std::string what = Format("{}: {}", Place(value), key.path);
    HVL_RETURN_IF_ERROR(CheckCompatValue(what, row.value, value.Scalar()));
    if (!IsGiven(key.option)) settings_.warnings.push_back(NoEffect(what, row));
    return Status::Ok();
  }

  /// Whether the option behind the key is on.
  Result<bool> Switch(const Key& key, const YAML::Node& value) const {
    bool on = false;
    if (value.Scalar() == "1" || value.Scalar() == "0") {
      on = value.Scalar() == "1";
    } else if (!YAML::convert<bool>::decode(value, on)) {
      return Bad(value,
                 Format("{}: '{}' is not valid: expected true or false", key.path, value.Scalar()));
    }
    return on != key.opposite;
  }

  bool IsGiven(std::string_view option) const {
    return std::find(given_.begin(), given_.end(), option) != given_.end();
  }

  const std::string_view name_;
  const std::span<const std::string> given_;
  FileSettings settings_;
};

/// Sees where documents begin, and nothing else.
class Documents final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { starts.push_back(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  std::vector<YAML::Mark> starts;
};

/// Goes no further than that: after a token that is out of place the library finds empty documents
/// for ever, so its LoadAll does not return.
std::optional<YAML::Mark> SecondDocument(const std::string& content) {
  std::istringstream stream(content);
  YAML::Parser parser(stream);
  Documents documents;
  while (documents.starts.size() < 2 && parser.HandleNextDocument(documents)) {
  }
  if (documents.starts.size() < 2) return std::nullopt;
  return documents.starts.back();
}

}  // namespace

Result<FileSettings> ParseConfigFile(const std::string& content, std::string_view name,
                                     std::span<const std::string> given) {
  try {
    if (const std::optional<YAML::Mark> second = SecondDocument(content)) {
      return Invalid(
          Format("{}:{}: another document begins here; one is expected", name, second->line + 1));
    }
    Reader reader(name, given);
    HVL_RETURN_IF_ERROR(reader.Read(YAML::Load(content)));
    return reader.Take();
  } catch (const YAML::Exception& error) {  // the library's way to say that it is no YAML
    return Invalid(Format("{}:{}: not valid YAML: {}", name, error.mark.line + 1, error.msg));
  }
}

}  // namespace hvl::launcher
