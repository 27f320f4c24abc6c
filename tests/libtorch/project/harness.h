// What the cases of tests/libtorch have in common: checks that throw, models, and data.
#pragma once

#include <horovodlite/torch.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace cases {

namespace hvt = hvl::torch;

#define EXPECT(condition)                                  \
  do {                                                     \
    if (!(condition)) ::cases::Fail(__LINE__, #condition); \
  } while (false)

template <typename... Parts>
[[noreturn]] void Fail(int line, const Parts&... parts) {
  std::ostringstream text;
  text << "line " << line << ": ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

/// The message of the hvl::Error that the function throws, which must have this code.
inline std::string ErrorOf(int line, hvl::StatusCode code, const std::function<void()>& function) {
  const hvl::Status status = hvl::Attempt(function);
  if (status.code() != code) {
    Fail(line, "expected ", hvl::StatusCodeName(code), ", got ", status.ToString());
  }
  return status.message();
}
#define ERROR_OF(code, ...) ErrorOf(__LINE__, hvl::StatusCode::code, [&] { __VA_ARGS__; })

inline void ExpectContains(int line, const std::string& text, const std::string& piece) {
  if (text.find(piece) == std::string::npos) Fail(line, "'", piece, "' is not in '", text, "'");
}
#define EXPECT_CONTAINS(text, piece) ExpectContains(__LINE__, text, piece)

inline void ExpectEqual(int line, const at::Tensor& found, const at::Tensor& wanted) {
  if (!found.defined() || found.sizes() != wanted.sizes() || found.dtype() != wanted.dtype() ||
      !found.equal(wanted)) {
    Fail(line, "found ", found, ", wanted ", wanted);
  }
}
#define EXPECT_EQUAL(found, wanted) ExpectEqual(__LINE__, found, wanted)

inline std::unique_ptr<hvl::Session> Join() { return hvl::ValueOrThrow(hvl::Session::Create()); }

constexpr auto kDouble = at::kDouble;

/// Two layers in float64 with the same weights each time; small gradients, so that they share.
inline torch::nn::Sequential Model(std::int64_t seed = 7) {
  torch::manual_seed(seed);
  torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
  model->to(kDouble);
  return model;
}

/// A batch for each step: `rows` per rank, the same on all ranks.
struct Batch {
  at::Tensor x, y;
};
inline Batch BatchOf(std::int64_t step, std::int64_t rows) {
  torch::manual_seed(1000 + step);
  return {torch::randn({rows, 6}, kDouble), torch::randn({rows, 3}, kDouble)};
}
/// This rank's part of it.
inline Batch PartOf(const Batch& batch, const hvl::Session& session) {
  const auto rank = session.world().rank, size = session.world().size;
  return {batch.x.chunk(size)[rank], batch.y.chunk(size)[rank]};
}

inline at::Tensor Loss(torch::nn::Sequential& model, const Batch& batch) {
  return torch::mse_loss(model->forward(batch.x), batch.y);
}

inline double Difference(const torch::nn::Module& a, const torch::nn::Module& b) {
  double most = 0;
  const auto first = a.parameters(), second = b.parameters();
  for (std::size_t i = 0; i < first.size(); ++i) {
    most = std::max(most, (first[i] - second[i]).abs().max().item<double>());
  }
  return most;
}

/// All ranks have the same bits.
inline void ExpectAlike(int line, hvl::Session& session, const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) {
    const at::Tensor flat = parameter.detach().reshape({1, -1});
    const at::Tensor all = hvt::allgather(session, flat);
    for (std::int64_t i = 0; i < all.size(0); ++i) {
      if (!all[i].equal(flat[0])) Fail(line, "ranks differ");
    }
  }
}
#define EXPECT_ALIKE(session, model) ExpectAlike(__LINE__, session, model)

template <typename Module>
hvt::NamedTensors Names(const Module& module) {
  return module->named_parameters().pairs();
}

}  // namespace cases
