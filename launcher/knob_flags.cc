#include "launcher/knob_flags.h"

#include <charconv>
#include <cstdint>
#include <map>
#include <optional>

#include "csrc/base/str.h"

namespace hvl::launcher {
namespace {

constexpr std::string_view kNo = "--no-";
constexpr std::string_view kWithout = "without";
constexpr std::string_view kMegabytes = "-mb";

/// The switch that undoes `flag`: --x for --no-x, --with-y for --without-y, else --no-x.
std::string Negation(std::string_view flag) {
  if (flag.starts_with(kNo)) return Format("--{}", flag.substr(kNo.size()));
  const std::size_t without = flag.find(kWithout);
  if (without != std::string_view::npos) {
    return Format("{}with{}", flag.substr(0, without), flag.substr(without + kWithout.size()));
  }
  return Format("{}{}", kNo, flag.substr(2));
}

/// Flags that end in -mb count in MiB, their knobs in bytes.
std::optional<std::string> MegabytesToBytes(const std::string& value) {
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  const char* end = value.data() + value.size();
  const auto [parsed_until, error] = std::from_chars(value.data(), end, count);
  if (error != std::errc() || parsed_until != end) return std::nullopt;
  if (__builtin_mul_overflow(count, std::int64_t{1} << 20, &bytes)) return std::nullopt;
  return Format("{}", bytes);
}

}  // namespace

std::vector<KnobFlag> KnobFlags() {
  std::vector<KnobFlag> flags;
  for (const config::KnobInfo& knob : config::AllKnobs()) {
    if (knob.flag.empty()) continue;
    KnobFlag flag{.knob = knob, .names = std::string(knob.flag), .is_switch = false};
    flag.is_switch = knob.type_name == "bool";
    if (flag.is_switch) flag.names += Format(",!{}", Negation(knob.flag));
    flags.push_back(std::move(flag));
  }
  return flags;
}

Result<std::vector<EnvSetting>> KnobSettings(const KnobFlag& flag, const std::string& value) {
  const config::KnobInfo& knob = flag.knob;
  const bool megabytes = knob.flag.ends_with(kMegabytes);
  const std::optional<std::string> text = megabytes ? MegabytesToBytes(value) : value;
  const std::string name(knob.env_name);
  const std::map<std::string, std::string, std::less<>> alone = {{name, text.value_or("")}};
  const bool valid =
      text && !text->empty() && config::Config::Parse(config::MapEnv(alone), nullptr).ok();
  if (!valid) {
    return Status(StatusCode::kInvalidArgument,
                  Format("{} {}: expected {}{}", knob.flag, value.empty() ? "''" : value,
                         megabytes ? "MiB that make " : "", knob.range_text));
  }
  std::vector<EnvSetting> settings = {{name, *text}};
  if (!knob.alias.empty()) settings.push_back({std::string(knob.alias), *text});
  return settings;
}

}  // namespace hvl::launcher
