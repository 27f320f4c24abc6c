#include "csrc/plan/mismatch.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "csrc/base/rank_text.h"
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
  if (signature.kind != OpKind::kAllgather && signature.kind != OpKind::kAlltoall) {
    return ShapeToString(tensor.shape);
  }
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

/// Bindings name the dimensions of other layouts than row-major, slowest first: each by its number
/// plus one, in four bits.
std::string LayoutText(Layout layout) {
  constexpr Layout kChannelsLast2d = 0x1342;
  constexpr Layout kChannelsLast3d = 0x13452;
  if (layout == 0) return "row-major";
  if (layout == kChannelsLast2d || layout == kChannelsLast3d) return "channels-last";
  std::string text;
  for (; layout != 0; layout >>= 4) {
    text = Format("{}{}{}", (layout & 0xF) - 1, text.empty() ? "" : ", ", text);
  }
  return Format("dimensions ({}), slowest first", text);
}

std::string Layouts(const wire::Signature& signature) {
  std::string text;
  for (const auto& tensor : signature.tensors) {
    text += text.empty() ? "" : ", ";
    text += LayoutText(tensor.layout);
  }
  return text;
}

std::string Ranks(const wire::Signature& signature) {
  if (signature.ranks.empty()) return "none (the set is removed)";
  return RankList(signature.ranks);
}

constexpr std::array kProperties = {
    Property{"operation", [](const wire::Signature& s) { return std::string(OpKindName(s.kind)); },
             "give different operations different names"},
    Property{"process set", [](const wire::Signature& s) { return Format("{}", s.process_set); },
             "use the same process set on all its ranks"},
    Property{"list of ranks", Ranks,
             "register the same process sets in the same order on all ranks"},
    Property{"number of tensors",
             [](const wire::Signature& s) { return Format("{}", s.tensors.size()); },
             "a group needs the same tensors on all ranks, and weight= all ranks or none"},
    Property{"element type", DTypes, "convert the tensor to one type on all ranks"},
    Property{
        "shape", Shapes,
        "the tensor needs the same shape on all ranks (allgather and alltoall: all dimensions but "
        "the first)"},
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

/// The one rank that stands against all others, or kNoRank. Of variants or values.
template <typename Group>
int OddRankOut(const std::vector<Group>& groups) {
  const auto alone = [](const Group& group) { return group.ranks.count() == 1; };
  if (std::count_if(groups.begin(), groups.end(), alone) != 1 || groups.size() < 2) {
    return Status::kNoRank;
  }
  return std::find_if(groups.begin(), groups.end(), alone)->ranks.First();
}

/// Every property that differs; `cure` of the first one.
std::string Differences(const std::vector<Variant>& variants, std::string_view& cure) {
  std::string text;
  for (const Property& property : kProperties) {
    const std::vector<Value> values = ValuesOf(property, variants);
    if (values.size() < 2) continue;
    text += Format("{}{}: {}", text.empty() ? "" : "; ", property.name, Describe(values));
    if (cure.empty()) cure = property.cure;
    // The rest differs for that reason alone.
    if (property.name == "operation" || property.name == "number of tensors") break;
  }
  return text;
}

/// Of the ranks that submitted it now; what is known of others is from earlier.
std::vector<Value> SiteValues(const Sites& sites, const std::vector<Variant>& variants) {
  std::vector<Value> values;
  for (const Sites::Site& site : sites.all()) {
    RankSet earlier = site.ranks;
    for (const Variant& variant : variants) earlier.EraseAll(variant.ranks);
    Value value{site.text, site.ranks};
    value.ranks.EraseAll(earlier);
    if (!value.ranks.empty()) values.push_back(std::move(value));
  }
  return values;
}

}  // namespace

std::string_view UserName(std::string_view name, OpKind kind) {
  constexpr std::string_view kGroup = "grouped_";
  const std::string_view kind_name = OpKindName(kind);
  std::string_view rest = name;
  if (rest.starts_with(kGroup)) rest.remove_prefix(kGroup.size());
  if (!rest.starts_with(kind_name)) return name;
  rest.remove_prefix(kind_name.size());
  return rest.starts_with('.') ? rest.substr(1) : name;
}

Status DeadlockError(std::vector<BlockedVariant> variants) {
  std::sort(variants.begin(), variants.end(), [](const auto& a, const auto& b) {
    return a.operation.ranks.First() < b.operation.ranks.First();
  });
  constexpr std::size_t kMaxShown = 8;
  std::string text;
  std::vector<Value> values;
  for (const auto& [operation, set] : variants) {
    values.push_back({operation.name, operation.ranks});
    if (values.size() > kMaxShown) continue;
    text += Format("{}{} in {} '{}'{}", text.empty() ? "" : ", ", operation.ranks.ToString(),
                   OpKindName(operation.kind), operation.name, set);
    if (!operation.sites.empty()) text += Format(" (at {})", operation.sites);
  }
  if (values.size() > kMaxShown) text += Format(" and {} more", values.size() - kMaxShown);
  return {StatusCode::kMismatch,
          Format("ranks wait for each other: {}. None of them can go on. Cure: submit unnamed "
                 "operations in the same order on all ranks, not on some ranks only.",
                 text),
          OddRankOut(values)};
}

Status KindsError(const std::string& name, const std::string& set,
                  std::vector<KindVariant> variants) {
  std::sort(variants.begin(), variants.end(), [](const KindVariant& a, const KindVariant& b) {
    return a.ranks.First() < b.ranks.First();
  });
  std::string text;
  for (const KindVariant& variant : variants) {
    text += Format("{}{} ('{}') on {}", text.empty() ? "" : ", ", OpKindName(variant.kind),
                   variant.name, variant.ranks.ToString());
    if (!variant.sites.empty()) text += Format(" (at {})", variant.sites);
  }
  return {StatusCode::kMismatch,
          Format("tensor '{}'{} differs between ranks: operation: {}. They wait for each other. "
                 "Cure: submit the same operation on all ranks, or give different operations "
                 "different names.",
                 name, set, text),
          OddRankOut(variants)};
}

Status MismatchError(const Disagreement& disagreement) {
  const std::vector<Variant>& variants = disagreement.variants;
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
  std::string_view cure;
  std::string differences = Differences(shown, cure);
  const std::vector<Value> sites = SiteValues(disagreement.sites, variants);
  int culprit = OddRankOut(variants);
  if (disagreement.sites_disagree) {
    if (differences.empty()) culprit = OddRankOut(sites);
    differences += Format("{}site: {}", differences.empty() ? "" : "; ", Describe(sites));
    cure =
        "submit unnamed operations in the same order on all ranks, or give each its own name= "
        "(HVL_UNNAMED_SITES=warn or off if these belong together)";
  }
  const bool has_tensors = wire::HasTensors(variants.front().signature->kind);
  std::string text =
      Format("{} '{}'{}{} differs between ranks: {}", has_tensors ? "tensor" : "operation",
             disagreement.name, disagreement.set, which, differences);
  if (!sites.empty() && !disagreement.sites_disagree) {
    text += Format("; submitted at {}", Describe(sites));
  }
  if (!disagreement.missing.empty()) {
    text += Format(" ({} not heard yet)", disagreement.missing.ToString());
  }
  return {StatusCode::kMismatch, Format("{}. Cure: {}.", text, cure), culprit};
}

}  // namespace hvl::plan
