#include "csrc/plan/mismatch.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "csrc/base/str.h"
#include "horovodlite/types.h"

namespace hvl::plan {
namespace {

/// One value of a property, as text, and the ranks that have it.
struct Value {
  std::string text;
  RankSet ranks;
};

/// A property of a signature that ranks must agree on.
struct Property {
  std::string_view name;
  std::string (*text)(const wire::Signature& signature);
  std::string_view cure;
};

std::string DTypes(const wire::Signature& signature) {
  std::string text;
  for (const auto& tensor : signature.tensors) {
    text += text.empty() ? "" : ", ";
    text += DTypeName(tensor.dtype);
  }
  return text;
}

std::string ShapeText(const wire::Signature& signature, const wire::TensorSignature& tensor) {
  if (signature.kind != OpKind::kAllgather) return ShapeToString(tensor.shape);
  std::string text = "[any";
  for (const std::int64_t dim : tensor.shape) text += Format(", {}", dim);
  return text + "]";
}

std::string Shapes(const wire::Signature& signature) {
  std::string text;
  for (const auto& tensor : signature.tensors) {
    text += text.empty() ? "" : ", ";
    text += ShapeText(signature, tensor);
  }
  return text;
}

std::string Layouts(const wire::Signature& signature) {
  std::string text;
  for (const auto& tensor : signature.tensors) {
    text += text.empty() ? "" : ", ";
    text += tensor.layout == 0 ? std::string("row-major") : Format("#{:x}", tensor.layout);
  }
  return text;
}

constexpr std::array kProperties = {
    Property{"operation", [](const wire::Signature& s) { return std::string(OpKindName(s.kind)); },
             "give different operations different names"},
    Property{"process set", [](const wire::Signature& s) { return Format("{}", s.process_set); },
             "use the same process set on all its ranks"},
    Property{"number of tensors",
             [](const wire::Signature& s) { return Format("{}", s.tensors.size()); },
             "a group needs the same tensors on all ranks"},
    Property{"element type", DTypes, "convert the tensor to one type on all ranks"},
    Property{"shape", Shapes,
             "the tensor needs the same shape on all ranks (allgather: all dimensions but the "
             "first)"},
    Property{"memory layout", Layouts,
             "use the same memory format on all ranks, e.g. tensor.contiguous()"},
    Property{"reduction",
             [](const wire::Signature& s) { return std::string(ReduceOpName(s.reduce_op)); },
             "pass the same op on all ranks"},
    Property{"prescale factor", [](const wire::Signature& s) { return Format("{}", s.prescale); },
             "pass the same factor on all ranks"},
    Property{"postscale factor", [](const wire::Signature& s) { return Format("{}", s.postscale); },
             "pass the same factor on all ranks"},
    Property{"root rank", [](const wire::Signature& s) { return Format("{}", s.root_rank); },
             "pass the same root_rank on all ranks"},
};

/// The distinct values of a property, in the order of the variants.
std::vector<Value> ValuesOf(const Property& property, const std::vector<Variant>& variants) {
  std::vector<Value> values;
  for (const Variant& variant : variants) {
    std::string text = property.text(*variant.signature);
    const auto same = std::find_if(values.begin(), values.end(),
                                   [&text](const Value& value) { return value.text == text; });
    if (same == values.end()) {
      values.push_back({std::move(text), variant.ranks});
      continue;
    }
    same->ranks.InsertAll(variant.ranks);
  }
  return values;
}

std::string Describe(const std::vector<Value>& values) {
  constexpr std::size_t kMaxValues = 8;
  constexpr std::size_t kMaxValueBytes = 400;  // groups: the lists of all shapes can be long
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i == kMaxValues) return text + Format(" and {} more values", values.size() - i);
    std::string value = values[i].text;
    if (value.size() > kMaxValueBytes) value = value.substr(0, kMaxValueBytes) + "...";
    text += Format("{}{} on {}", i == 0 ? "" : ", ", value, values[i].ranks.ToString());
  }
  return text;
}

/// For groups, only the tensors that differ matter; returns the variants cut down to the first
/// one, or the variants as they are.
std::string WhichTensor(const std::vector<Variant>& variants, std::size_t* index) {
  const auto& first = variants.front().signature->tensors;
  for (const Variant& variant : variants) {
    if (variant.signature->tensors.size() != first.size()) return "";
  }
  if (first.size() < 2) return "";
  for (std::size_t i = 0; i < first.size(); ++i) {
    for (const Variant& variant : variants) {
      if (variant.signature->tensors[i] == first[i]) continue;
      *index = i;
      return Format(" (its tensor {} of {})", i + 1, first.size());
    }
  }
  return "";
}

int OddRankOut(const std::vector<Variant>& variants) {
  const auto fewest = std::min_element(
      variants.begin(), variants.end(),
      [](const Variant& a, const Variant& b) { return a.ranks.count() < b.ranks.count(); });
  const auto ties = std::count_if(variants.begin(), variants.end(), [](const Variant& variant) {
    return variant.ranks.count() == 1;
  });
  return fewest->ranks.count() == 1 && ties == 1 ? fewest->ranks.First() : Status::kNoRank;
}

}  // namespace

Status MismatchError(const std::string& name, const std::vector<Variant>& variants,
                     const RankSet& missing) {
  // Of a group, show the first tensor that differs, not all of them.
  std::size_t tensor_index = 0;
  const std::string which = WhichTensor(variants, &tensor_index);
  std::vector<wire::Signature> shortened;
  std::vector<Variant> shown = variants;
  if (!which.empty()) {
    shortened.reserve(variants.size());
    for (Variant& variant : shown) {
      shortened.push_back(*variant.signature);
      shortened.back().tensors = {variant.signature->tensors[tensor_index]};
      variant.signature = &shortened.back();
    }
  }
  std::string differences;
  std::string_view cure;
  for (const Property& property : kProperties) {
    const std::vector<Value> values = ValuesOf(property, shown);
    if (values.size() < 2) continue;
    differences +=
        Format("{}{}: {}", differences.empty() ? "" : "; ", property.name, Describe(values));
    if (cure.empty()) cure = property.cure;
    if (property.name == "operation") break;  // the rest differs for that reason alone
  }
  std::string text = Format("tensor '{}'{} differs between ranks: {}", name, which, differences);
  if (!missing.empty()) text += Format(" ({} not heard yet)", missing.ToString());
  return {StatusCode::kMismatch, Format("{}. Cure: {}.", text, cure), OddRankOut(variants)};
}

}  // namespace hvl::plan
