// The list of everything that is measured on a GPU.
#include "bench/cuda/cases.h"

#include <algorithm>

#include "core/text.h"

namespace cadre::bench {
namespace {

constexpr int kSkews[] = {0, 1};

std::string_view pass_name(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return "forward";
    case Pass::kDgrad:
      return "dgrad";
    default:
      return "wgrad";
  }
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

Status check_ops(const std::vector<std::string>& ops) {
  std::string known;
  for (const std::string_view name : kCudaOps) known += text(known.empty() ? "" : ", ", name);
  for (const std::string& op : ops) {
    if (std::find(std::begin(kCudaOps), std::end(kCudaOps), op) == std::end(kCudaOps)) {
      return Status::invalid(text("--op = ", op, ", expected one of ", known));
    }
  }
  return {};
}

Status find_shapes(const std::vector<std::string>& names, std::vector<shapes::Shape>* found) {
  if (names.empty()) {
    found->assign(shapes::all().begin(), shapes::all().end());
    return {};
  }
  for (const std::string& name : names) {
    const std::vector<shapes::Shape> called = shapes::called(name);
    if (called.empty()) {
      return Status::invalid(text("--shape = ", name, ", expected one of ", shapes::known_names()));
    }
    found->insert(found->end(), called.begin(), called.end());
  }
  return {};
}

/// bf16 first: f16 is compared with it.
Status find_dtypes(const std::vector<std::string>& names, std::vector<DType>* dtypes) {
  *dtypes = {DType::kBF16, DType::kF16, DType::kE4M3};
  if (names.empty()) return {};
  for (const std::string& name : names) {
    if (std::find(dtypes->begin(), dtypes->end(), dtype_from_name(name)) == dtypes->end()) {
      return Status::invalid(text("--dtype = ", name, ", expected bf16, f16 or e4m3 on a GPU"));
    }
  }
  std::erase_if(*dtypes, [&](DType dtype) { return !contains(names, name_of(dtype)); });
  return {};
}

/// What all kinds of cases are made of.
struct Parts {
  std::vector<shapes::Shape> shapes;
  std::vector<DType> dtypes;  ///< of 16 bits
  bool fp8 = false;
  std::vector<Condition> conditions;
};

Status find_parts(const CaseFilter& filter, Parts* parts) {
  Status status = check_ops(filter.ops);
  if (status.ok()) status = find_shapes(filter.shapes, &parts->shapes);
  if (status.ok()) status = find_dtypes(filter.dtypes, &parts->dtypes);
  if (status.ok()) status = find_conditions(filter.conditions, &parts->conditions);
  parts->fp8 = std::erase(parts->dtypes, DType::kE4M3) > 0;
  return status;
}

bool wants_skew(const CaseFilter& filter, int skew) {
  return filter.skews.empty() ||
         std::find(filter.skews.begin(), filter.skews.end(), skew) != filter.skews.end();
}

/// Adds a case that is compared with the case of this name in the group, if there is one.
void add_against(std::string_view other, Baseline baseline, Case added, CaseGroup* group) {
  for (size_t i = 0; i < group->cases.size(); ++i) {
    if (group->cases[i].name != other) continue;
    added.baseline = baseline;
    added.baseline_case = i;
    break;
  }
  group->cases.push_back(std::move(added));
}

/// The plain product in each dtype. The first is also timed alone; the others are there to be
/// compared with it, in turn.
void add_products(const std::vector<DType>& dtypes, CaseGroup* group) {
  const std::string name = text(group->decode() ? "decode " : "", pass_name(group->pass));
  for (const DType dtype : dtypes) {
    const bool alone = dtype == dtypes.front();
    add_against(name, Baseline::kBf16, {.name = name, .dtype = dtype, .alone = alone}, group);
  }
}

/// What adds to an fp32 main_grad: in one tensor, and in one for each expert.
void add_main_grad(CaseGroup* group) {
  const std::string name = "wgrad f32 accumulate";
  const Extras main_grad = {.f32_out = true, .accumulate = true};
  Extras listed = main_grad;
  listed.list = true;
  Extras on_device = listed;
  on_device.list_on_device = true;
  group->cases.push_back({.name = name, .extras = main_grad, .alone = true});
  add_against(name, Baseline::kPlain, {.name = name + ", list", .extras = listed}, group);
  add_against(name, Baseline::kPlain, {.name = name + ", list on device", .extras = on_device},
              group);
}

/// Every option of the epilogue beside the plain product.
void add_options(DType dtype, CaseGroup* group) {
  group->cases.push_back({.name = "plain", .dtype = dtype});
  const struct {
    const char* name;
    Extras extras;
  } options[] = {
      {"bias", {.bias = true}},
      {"bias and scales", {.bias = true, .scales = true}},
      {"alpha, beta and C", {.c = true}},
      {"accumulate", {.accumulate = true}},
      {"f32 out", {.f32_out = true}},
      {"f32 accumulate", {.f32_out = true, .accumulate = true}},
      {"list of weights", {.list = true}},
      {"list of weights on device", {.list = true, .list_on_device = true}},
  };
  for (const auto& option : options) {
    add_against("plain", Baseline::kPlain,
                {.name = option.name, .dtype = dtype, .extras = option.extras}, group);
  }
}

}  // namespace

std::string_view op_of(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return "gmm_nt";
    case Pass::kDgrad:
      return "gmm";
    default:
      return "tgmm";
  }
}

bool wants_host_cost(const CaseFilter& filter) { return contains(filter.ops, "host"); }

Status make_layer_cases(const CaseFilter& filter, std::vector<LayerCase>* cases) {
  Parts parts;
  if (Status status = find_parts(filter, &parts); !status.ok()) return status;
  if (!contains(filter.ops, "layer") || !wants_skew(filter, 0) || parts.dtypes.empty()) return {};
  for (const shapes::LayerShape& shape : shapes::layers()) {
    if (!contains(filter.shapes, shape.name)) continue;
    for (const bool backward : {false, true}) {
      cases->push_back({shape, parts.dtypes.front(), backward, parts.conditions});
    }
  }
  return {};
}

Status make_scaled_cases(const CaseFilter& filter, std::vector<ScaledCase>* cases) {
  Parts parts;
  if (Status status = find_parts(filter, &parts); !status.ok()) return status;
  if (!contains(filter.ops, "gmm_nt") || !parts.fp8) return {};
  for (const shapes::Shape& shape : parts.shapes) {
    for (const int skew : kSkews) {
      if (!wants_skew(filter, skew)) continue;
      for (const ScaleMode mode : {ScaleMode::kBlock128, ScaleMode::kRow}) {
        cases->push_back({shape, static_cast<double>(skew), mode, parts.conditions});
      }
    }
  }
  return {};
}

Status make_case_groups(const CaseFilter& filter, std::vector<CaseGroup>* groups) {
  constexpr int64_t kPortableRows = 512;  // an expert; fewer are not promised anything
  Parts parts;
  if (Status status = find_parts(filter, &parts); !status.ok()) return status;
  const std::vector<DType>& dtypes = parts.dtypes;
  if (dtypes.empty()) return {};

  const auto add = [groups, &filter, &parts](CaseGroup group) {
    group.conditions = parts.conditions;
    if (!contains(parts.conditions, Condition::kMixed)) {
      // What is compared with another case is compared in turn.
      std::erase_if(group.cases, [](const Case& one) { return !one.alone; });
    }
    for (Case& one : group.cases) one.kernel = one.portable ? "" : filter.kernel;
    if (!group.cases.empty()) groups->push_back(std::move(group));
  };
  for (const shapes::Shape& shape : parts.shapes) {
    const bool decode = shape.tag == "decode";
    for (const int skew : kSkews) {
      if (!wants_skew(filter, skew)) continue;
      for (const Pass pass : {Pass::kForward, Pass::kDgrad, Pass::kWgrad}) {
        const CaseGroup empty{
            .shape = shape, .skew = static_cast<double>(skew), .pass = pass, .dense = !decode};
        CaseGroup group = empty;
        if (contains(filter.ops, op_of(pass)) && !(decode && pass == Pass::kWgrad)) {
          add_products(dtypes, &group);
        }
        add(group);
        if (decode) {
          group.flush = Flush::kRead;
          for (Case& one : group.cases) one.alone = false;
          add(group);
          continue;
        }
        // A group of their own each: behind a kernel that leaves the tensor cores half idle, the
        // card has the power to run the next call faster than it can for long.
        if (pass == Pass::kWgrad && contains(filter.ops, op_of(pass)) &&
            dtypes.front() == DType::kBF16) {
          group = empty;
          add_main_grad(&group);
          add(group);
        }
        if (contains(filter.ops, "portable") && skew == 0 &&
            shape.m() / shape.num_groups >= kPortableRows) {
          group = empty;
          group.cases.push_back({.name = text("portable ", pass_name(pass)),
                                 .dtype = dtypes.front(),
                                 .portable = true});
          add(group);
        }
      }
      if (!decode && skew == 0 && contains(filter.ops, "options")) {
        CaseGroup group{.shape = shape, .dense = false};
        add_options(dtypes.front(), &group);
        add(group);
      }
    }
  }
  return {};
}

}  // namespace cadre::bench
