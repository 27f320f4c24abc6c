#include "csrc/config/identity.h"

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/config/knob_table.h"

namespace hvl::config {
namespace {

/// The variable that sets a knob, as the user wrote it; empty when neither name is set.
std::string_view NameInUse(const EnvSource& env, std::string_view env_name) {
  const KnobRow* row = FindKnob(env_name);
  HVL_CHECK(row != nullptr, Format("no knob is named '{}'", env_name));
  for (const std::string_view name : {row->info.env_name, row->info.alias}) {
    const std::optional<std::string> value = env.Get(name);
    if (value && !value->empty()) return name;
  }
  return {};
}

/// A rank and a size that belong together. Empty names: not set.
struct Pair {
  std::string_view rank_name, size_name;
  int rank, size;

  bool given() const { return !rank_name.empty() && !size_name.empty(); }
};

/// The partner of a variable in the same spelling: HOROVOD_LOCAL_RANK -> HOROVOD_LOCAL_SIZE.
std::string Partner(std::string_view name, std::string_view last_word) {
  return Format("{}{}", name.substr(0, name.rfind('_') + 1), last_word);
}

Status CheckPair(const Pair& pair) {
  if (pair.rank_name.empty() != pair.size_name.empty()) {
    const bool has_rank = !pair.rank_name.empty();
    const std::string_view set = has_rank ? pair.rank_name : pair.size_name;
    return {StatusCode::kInvalidArgument,
            Format("{} is set but {} is not; set both, or start the job with hvlrun, which does",
                   set, Partner(set, has_rank ? "SIZE" : "RANK"))};
  }
  if (pair.rank >= pair.size) {
    return {StatusCode::kInvalidArgument,
            Format("{}={} must be less than {}={}; ranks count from 0", pair.rank_name, pair.rank,
                   pair.size_name, pair.size)};
  }
  return Status::Ok();
}

}  // namespace

Status CompleteIdentity(const EnvSource& env, Config* config) {
  const Pair world{NameInUse(env, "HVL_RANK"), NameInUse(env, "HVL_SIZE"), config->rank,
                   config->size};
  const Pair local{NameInUse(env, "HVL_LOCAL_RANK"), NameInUse(env, "HVL_LOCAL_SIZE"),
                   config->local_rank, config->local_size};
  const Pair cross{NameInUse(env, "HVL_CROSS_RANK"), NameInUse(env, "HVL_CROSS_SIZE"),
                   config->cross_rank, config->cross_size};
  HVL_RETURN_IF_ERROR(CheckPair(world));
  HVL_RETURN_IF_ERROR(CheckPair(local));
  HVL_RETURN_IF_ERROR(CheckPair(cross));

  for (const Pair& part : {local, cross}) {
    if (part.given() && !world.given()) {
      return {StatusCode::kInvalidArgument,
              Format("{} and {} are set but HVL_RANK and HVL_SIZE are not; start the job with "
                     "hvlrun, which sets them",
                     part.rank_name, part.size_name)};
    }
    if (part.given() && part.size > world.size) {
      return {StatusCode::kInvalidArgument,
              Format("{}={} is more than the whole world, {}={}", part.size_name, part.size,
                     world.size_name, world.size)};
    }
  }
  if (!local.given()) {
    config->local_rank = config->rank;
    config->local_size = config->size;
  }
  if (!cross.given() && config->local_size < config->size) {
    return {StatusCode::kInvalidArgument,
            Format("{}={} of {}={} ranks are on this host, so HVL_CROSS_RANK and HVL_CROSS_SIZE "
                   "must be set as well; hvlrun does",
                   local.size_name, local.size, world.size_name, world.size)};
  }
  return Status::Ok();
}

}  // namespace hvl::config
