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
    std::vector<shapes::Shape> named = shapes::tagged(name);
    if (const shapes::Shape* shape = shapes::find(name)) named.push_back(*shape);
    if (named.empty()) {
      std::string known = "train, decode";
      for (const shapes::Shape& shape : shapes::all()) known += text(", ", shape.name);
      return Status::invalid(text("--shape = ", name, ", expected one of ", known));
    }
    found->insert(found->end(), named.begin(), named.end());
  }
  return {};
}

/// bf16 first: f16 is compared with it.
Status find_dtypes(const std::string& name, std::vector<DType>* dtypes) {
  *dtypes = {DType::kBF16, DType::kF16};
  if (name.empty()) return {};
  *dtypes = {dtype_from_name(name)};
  if (dtypes->front() == DType::kBF16 || dtypes->front() == DType::kF16) return {};
  return Status::invalid(text("--dtype = ", name, ", expected bf16 or f16 on a GPU"));
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

Status make_case_groups(const CaseFilter& filter, std::vector<CaseGroup>* groups) {
  constexpr int64_t kPortableRows = 512;  // an expert; fewer are not promised anything
  std::vector<shapes::Shape> found;
  std::vector<DType> dtypes;
  std::vector<Condition> conditions;
  Status status = check_ops(filter.ops);
  if (status.ok()) status = find_shapes(filter.shapes, &found);
  if (status.ok()) status = find_dtypes(filter.dtype, &dtypes);
  if (status.ok()) status = find_conditions(filter.conditions, &conditions);
  if (!status.ok()) return status;

  const auto add = [groups, &filter, &conditions](CaseGroup group) {
    group.conditions = conditions;
    if (!contains(conditions, Condition::kMixed)) {
      // What is compared with another case is compared in turn.
      std::erase_if(group.cases, [](const Case& one) { return !one.alone; });
    }
    for (Case& one : group.cases) one.kernel = one.portable ? "" : filter.kernel;
    if (!group.cases.empty()) groups->push_back(std::move(group));
  };
  for (const shapes::Shape& shape : found) {
    const bool decode = shape.tag == "decode";
    for (const int skew : kSkews) {
      if (!filter.skews.empty() &&
          std::find(filter.skews.begin(), filter.skews.end(), skew) == filter.skews.end()) {
        continue;
      }
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
