// Options of horovodrun that hvlrun knows by name only: those that have no effect here, and those
// whose work is still to come.
#pragma once

#include <array>
#include <string_view>

namespace hvl::launcher {

struct CompatOption {
  std::string_view names;  ///< as the command-line library takes them; "!" marks a negation
  int value_count = 0;
  std::string_view reason;  ///< ends the sentence "<option> has no effect: ..."
};

/// Accepted; one warning each.
inline constexpr auto kNoEffectOptions = std::to_array<CompatOption>({
    {"--disable-cache", 0, "nothing is cached between runs"},
    {"--hierarchical-allreduce,!--no-hierarchical-allreduce", 0,
     "the levels of a reduction follow from where the ranks are"},
    {"--hierarchical-allgather,!--no-hierarchical-allgather", 0,
     "the levels of a gather follow from where the ranks are"},
    {"--torus-allreduce,!--no-torus-allreduce", 0, "it concerns GPUs, which are not used yet"},
    {"--autotune,!--no-autotune", 0, "there is no autotuner; fusion adapts by itself"},
    {"--autotune-log-file", 1, "there is no autotuner"},
    {"--autotune-warmup-samples", 1, "there is no autotuner"},
    {"--autotune-steps-per-sample", 1, "there is no autotuner"},
    {"--autotune-bayes-opt-max-samples", 1, "there is no autotuner"},
    {"--autotune-gaussian-process-noise", 1, "there is no autotuner"},
    {"--mpi-threads-disable,!--no-mpi-threads-disable", 0, "MPI is not used"},
    {"--tcp", 0, "ranks of one machine use no network; HVL_CPU_OPERATIONS=tcp forces sockets"},
    {"--binding-args", 1, "ranks are not bound to processors"},
    {"--num-nccl-streams", 1, "NCCL is not used yet"},
    {"--thread-affinity", 1, "threads stay on the processors that the rank may use"},
    {"--gloo-timeout-seconds", 1, "Gloo is not used; --start-timeout limits the start"},
});

/// Refused.
inline constexpr auto kNotYetOptions = std::to_array<CompatOption>({
    {"--min-np,--min-num-proc", 1, "elastic jobs"},
    {"--max-np,--max-num-proc", 1, "elastic jobs"},
    {"--slots-per-host", 1, "elastic jobs"},
    {"--elastic-timeout", 1, "elastic jobs"},
    {"--reset-limit", 1, "elastic jobs"},
    {"--blacklist-cooldown-range", 2, "elastic jobs"},
    {"--host-discovery-script", 1, "elastic jobs"},
    {"-p,--ssh-port", 1, "ranks on other machines"},
    {"-i,--ssh-identity-file", 1, "ranks on other machines"},
    {"--mpi", 0, "starting ranks through MPI"},
    {"--mpi-args", 1, "starting ranks through MPI"},
    {"--jsrun", 0, "starting ranks through jsrun"},
    {"--config-file", 1, "configuration files"},
});

}  // namespace hvl::launcher
