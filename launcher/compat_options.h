// Options of horovodrun that hvlrun knows by name only: those that have no effect here, and those
// whose work is still to come.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "launcher/errors.h"
#include "launcher/options.h"

namespace hvl::launcher {

/// What is written behind an option: checked also where nothing follows from it.
enum class CompatValue : std::uint8_t { kNone, kText, kCount, kTwoCounts, kFraction };

struct CompatOption {
  std::string_view names;  ///< as the command-line library takes them; "!" marks a negation
  CompatValue value = CompatValue::kNone;
  std::string_view reason;  ///< ends the sentence "<option> has no effect: ..."
};

inline constexpr std::string_view kNotElastic =
    "only elastic jobs use it, and they are not supported yet";

/// Accepted; one warning each.
inline constexpr auto kNoEffectOptions = std::to_array<CompatOption>({
    {"--disable-cache", CompatValue::kNone, "nothing is cached between runs"},
    {"--hierarchical-allreduce,!--no-hierarchical-allreduce", CompatValue::kNone,
     "the levels of a reduction follow from where the ranks are"},
    {"--hierarchical-allgather,!--no-hierarchical-allgather", CompatValue::kNone,
     "the levels of a gather follow from where the ranks are"},
    {"--torus-allreduce,!--no-torus-allreduce", CompatValue::kNone,
     "it concerns GPUs, which are not used yet"},
    {"--autotune-gaussian-process-noise", CompatValue::kFraction,
     "the autotuner compares medians and needs no model of the noise"},
    {"--slots-per-host", CompatValue::kCount, kNotElastic},
    {"--elastic-timeout", CompatValue::kCount, kNotElastic},
    {"--reset-limit", CompatValue::kCount, kNotElastic},
    {"--blacklist-cooldown-range", CompatValue::kTwoCounts, kNotElastic},
    {"--num-nccl-streams", CompatValue::kCount, "NCCL is not used yet"},
    {"--gloo-timeout-seconds", CompatValue::kCount,
     "Gloo is not used; --start-timeout limits the start"},
});

/// What only --mpi uses; without it, one warning each.
inline constexpr auto kMpiOptions = std::to_array<CompatOption>({
    {"--mpi-threads-disable,!--no-mpi-threads-disable", CompatValue::kNone, "MPI is not used"},
    {"--mpi-args", CompatValue::kText, "MPI does not start the ranks"},
    {"--tcp", CompatValue::kNone,
     "ranks of one machine use no network; HVL_CPU_OPERATIONS=tcp forces sockets"},
    {"--binding-args", CompatValue::kText,
     "MPI does not start the ranks; --bind says where they run"},
});

/// Refused: without them the job would be another one.
inline constexpr auto kNotYetOptions = std::to_array<CompatOption>({
    {"--min-np,--min-num-proc", CompatValue::kCount, "elastic jobs"},
    {"--max-np,--max-num-proc", CompatValue::kCount, "elastic jobs"},
    {"--host-discovery-script", CompatValue::kText, "elastic jobs"},
    {"--jsrun", CompatValue::kNone, "starting ranks through jsrun"},
});

/// Notes the option of kMpiOptions with this long name, which is switched on or has this value.
void TakeMpiOption(std::string_view name, const std::string& value, MpiChoice* choice);

/// The long name that stands for an option in messages.
std::string CompatName(const CompatOption& option);

/// What is said about an option (or a key of a configuration file) that has no effect.
std::string NoEffect(std::string_view what, const CompatOption& option);
/// The refusal of one whose work is still to come.
Status NotSupportedYet(std::string_view what, const CompatOption& option);

/// InvalidArgument "<what> '<text>' ..." when the text is no value of this kind.
Status CheckCompatValue(std::string_view what, CompatValue kind, const std::string& text);

}  // namespace hvl::launcher
