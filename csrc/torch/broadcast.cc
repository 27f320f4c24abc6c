#include "horovodlite/torch/broadcast.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>
#include <torch/serialize.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <string_view>

#include "csrc/torch/tensors.h"
#include "horovodlite/error.h"
#include "horovodlite/torch/operations.h"

namespace hvl::torch {
namespace {

/// A row per tensor: what has to be the same on all ranks.
std::string Describe(const NamedTensors& tensors) {
  std::string text;
  for (const auto& [name, tensor] : tensors) {
    text += c10::str("'", name, "' ", tensor.scalar_type(), " ", SizesText(tensor), "\n");
  }
  return text;
}

std::vector<std::string> Rows(std::string_view text) {
  std::vector<std::string> rows;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) rows.push_back(line);
  return rows;
}

std::string Difference(const std::vector<std::string>& texts, const std::vector<int>& ranks) {
  std::vector<std::vector<std::string>> tables;
  std::size_t longest = 0;
  for (const std::string& text : texts) {
    tables.push_back(Rows(text));
    longest = std::max(longest, tables.back().size());
  }
  for (std::size_t row = 0; row < longest; ++row) {
    std::map<std::string, std::vector<int>> sides;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      sides[row < tables[i].size() ? tables[i][row] : "nothing"].push_back(ranks[i]);
    }
    if (sides.size() < 2) continue;
    std::string listed;
    for (const auto& [side, where] : sides) {
      listed += c10::str(listed.empty() ? "" : "; ", side, " on rank ", c10::Join(", ", where));
    }
    return c10::str("The ranks disagree about the parameters, entry ", row, ": ", listed,
                    ". Nothing was changed.");
  }
  return "The ranks disagree about the parameters. Nothing was changed.";
}

/// Throws on every rank alike when the ranks' texts differ.
void RequireSame(Session& session, const std::string& text, ProcessSetId process_set) {
  const Options options{.process_set = process_set};
  const auto bytes = at::from_blob(const_cast<char*>(text.data()),
                                   {static_cast<std::int64_t>(text.size())}, at::kByte);
  const at::Tensor row = at::empty({1}, at::kLong);
  row.fill_(static_cast<std::int64_t>(text.size()));
  const at::Tensor lengths = allgather(session, row, options);
  const at::Tensor all = allgather(session, bytes, options);
  std::vector<std::string> texts;
  const auto* next = static_cast<const char*>(all.const_data_ptr());
  for (std::int64_t i = 0; i < lengths.numel(); ++i) {
    const auto length = static_cast<std::size_t>(lengths[i].item<std::int64_t>());
    texts.emplace_back(next, length);
    next += length;
  }
  if (std::all_of(texts.begin(), texts.end(), [&](const auto& one) { return one == texts[0]; })) {
    return;
  }
  const std::vector<int> ranks = ValueOrThrow(session.ProcessSetRanks(process_set));
  throw Error({StatusCode::kMismatch, Difference(texts, ranks)});
}

/// The root's bytes on every rank.
std::string BroadcastBytes(Session& session, std::string bytes, int root,
                           ProcessSetId process_set) {
  const Options options{.process_set = process_set};
  const at::Tensor size = at::empty({}, at::kLong);
  size.fill_(static_cast<std::int64_t>(bytes.size()));
  bytes.resize(
      static_cast<std::size_t>(broadcast(session, size, root, options).item<std::int64_t>()));
  broadcast_(session,
             at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte),
             root, options);
  return bytes;
}

}  // namespace

void broadcast_parameters(Session& session, const NamedTensors& tensors, int root,
                          ProcessSetId process_set) {
  NamedTensors defined;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(defined),
               [](const auto& entry) { return entry.second.defined(); });
  RequireSame(session, Describe(defined), process_set);
  std::vector<Handle<at::Tensor>> started;
  for (std::size_t i = 0; i < defined.size(); ++i) {
    const auto& [name, tensor] = defined[i];
    const Options options{.name = c10::str("parameters.", i, ".", name),
                          .process_set = process_set};
    started.push_back(broadcast_async_(session, tensor, root, options));
  }
  Status first;
  for (Handle<at::Tensor>& one : started) {
    if (Status status = one.wait(); first.ok()) first = std::move(status);
  }
  ThrowIfError(std::move(first));
}

void broadcast_parameters(Session& session, const ::torch::nn::Module& module, int root,
                          ProcessSetId process_set) {
  NamedTensors tensors = module.named_parameters().pairs();
  const NamedTensors buffers = module.named_buffers().pairs();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  broadcast_parameters(session, tensors, root, process_set);
}

void broadcast_optimizer_state(Session& session, ::torch::optim::Optimizer& optimizer, int root,
                               ProcessSetId process_set) {
  const bool is_root = session.world().rank == root;
  std::string bytes;
  if (is_root) {
    std::ostringstream stream;
    ::torch::save(optimizer, stream);
    bytes = std::move(stream).str();
  }
  bytes = BroadcastBytes(session, std::move(bytes), root, process_set);
  if (is_root) return;
  std::istringstream stream(std::move(bytes));
  ::torch::load(optimizer, stream);
}

}  // namespace hvl::torch
