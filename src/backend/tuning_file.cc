// Reads and writes tuning files. A damaged file is a fault that somebody may read, never an error
// of a call.
#include "backend/tuning_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>

#include "core/text.h"

#if defined(CADRE_WITH_JSON)
#include <nlohmann/json.hpp>
#endif

namespace cadre::backend {

#if !defined(CADRE_WITH_JSON)

std::string_view no_tables_reason() {
  return "this build reads no tuning tables: nlohmann-json was missing";
}

TuningFile parse_tuning(std::string_view /*text*/) {
  return {.fault = std::string(no_tables_reason())};
}

std::string tuning_text(const std::vector<TuningEntry>& /*entries*/) { return {}; }

#else

namespace {

using nlohmann::json;

constexpr std::string_view kActivations[] = {"none",       "silu",      "gelu_tanh",
                                             "gelu_erf",   "relu2",     "swiglu",
                                             "geglu_tanh", "geglu_erf", "clamped_swiglu"};
constexpr plan::Op kOps[] = {plan::Op::kGmm, plan::Op::kTgmm, plan::Op::kGroupedGemm};

/// Takes the fields of one entry; the first that is missing or of another kind is the fault.
class EntryReader {
 public:
  explicit EntryReader(const json& entry) : entry_(entry) {}

  const std::string& fault() const { return fault_; }

  std::string text_of(const char* name) {
    const json* value = find(name);
    if (value == nullptr || !value->is_string()) return fail(name, "a string"), "";
    return value->get<std::string>();
  }
  int64_t whole(const char* name, int64_t least) {
    const json* value = find(name);
    if (value == nullptr || !value->is_number_integer() || value->get<int64_t>() < least) {
      return fail(name, cadre::text("a whole number from ", least)), least;
    }
    return value->get<int64_t>();
  }
  double seconds(const char* name) {
    const json* value = find(name);
    const double number = value != nullptr && value->is_number() ? value->get<double>() : 0;
    if (!std::isfinite(number) || number <= 0) fail(name, "a number above 0");
    return number;
  }
  /// A word of the list "form".
  bool form(const char* word) {
    const json* value = find("form");
    if (value == nullptr || !value->is_array()) return fail("form", "a list of words"), false;
    return std::find(value->begin(), value->end(), word) != value->end();
  }
  DType dtype(const char* name) {
    const DType dtype = dtype_from_name(text_of(name));
    if (dtype == DType::kInvalid) fail(name, "an element type");
    return dtype;
  }
  void fail(const char* name, std::string_view expected) {
    if (!fault_.empty()) return;
    const json* value = find(name);
    fault_ = cadre::text(name, " = ", value == nullptr ? "missing" : value->dump(), ", expected ",
                         expected);
  }

 private:
  const json* find(const char* name) const {
    const auto found = entry_.find(name);
    return found == entry_.end() ? nullptr : &*found;
  }

  const json& entry_;
  std::string fault_;
};

TuningEntry entry_of(EntryReader& reader) {
  TuningEntry entry;
  entry.machine = reader.text_of("machine");
  const std::string op = reader.text_of("op");
  const auto* named = std::find_if(std::begin(kOps), std::end(kOps),
                                   [&](plan::Op one) { return plan::name_of(one) == op; });
  if (named == std::end(kOps)) {
    reader.fail("op", "gmm, tgmm or grouped_gemm");
  } else {
    entry.key.op = *named;
  }
  entry.key.lhs = reader.dtype("lhs");
  entry.key.rhs = reader.dtype("rhs");
  entry.key.out = reader.dtype("out");
  if (!scale_mode_from_name(reader.text_of("scales"), &entry.key.scales)) {
    reader.fail("scales", "a scaling mode");
  }
  const std::string activation = reader.text_of("activation");
  const auto* kind = std::find(std::begin(kActivations), std::end(kActivations), activation);
  if (kind == std::end(kActivations)) {
    reader.fail("activation", "an activation");
  } else {
    entry.key.activation = static_cast<ActivationKind>(kind - std::begin(kActivations));
  }
  entry.key.interleaved = reader.form("interleaved");
  entry.key.transpose_lhs = reader.form("transpose_lhs");
  entry.key.transpose_rhs = reader.form("transpose_rhs");
  entry.key.list_rhs = reader.form("list_rhs");
  entry.key.list_out = reader.form("list_out");
  entry.key.beta = reader.form("beta");
  entry.key.by_index = reader.form("by_index");
  entry.key.k = reader.whole("k", 0);
  entry.key.n = reader.whole("n", 0);
  entry.key.num_groups = reader.whole("num_groups", 0);
  entry.key.rows = reader.whole("rows_up_to", 1);
  entry.kernel = reader.text_of("kernel");
  entry.threads = static_cast<int32_t>(std::min<int64_t>(reader.whole("threads", 1), 1 << 20));
  entry.seconds = reader.seconds("seconds");
  entry.default_kernel = reader.text_of("default_kernel");
  entry.default_seconds = reader.seconds("default_seconds");
  return entry;
}

json json_of(const TuningEntry& entry) {
  const TuningKey& key = entry.key;
  json form = json::array();
  const struct {
    bool given;
    const char* word;
  } words[] = {{key.interleaved, "interleaved"},
               {key.transpose_lhs, "transpose_lhs"},
               {key.transpose_rhs, "transpose_rhs"},
               {key.list_rhs, "list_rhs"},
               {key.list_out, "list_out"},
               {key.beta, "beta"},
               {key.by_index, "by_index"}};
  for (const auto& one : words) {
    if (one.given) form.push_back(one.word);
  }
  return {{"machine", entry.machine},
          {"kernels", kTuningKernels},
          {"op", plan::name_of(key.op)},
          {"lhs", name_of(key.lhs)},
          {"rhs", name_of(key.rhs)},
          {"out", name_of(key.out)},
          {"scales", name_of(key.scales)},
          {"activation", kActivations[static_cast<size_t>(key.activation)]},
          {"form", form},
          {"k", key.k},
          {"n", key.n},
          {"num_groups", key.num_groups},
          {"rows_up_to", key.rows},
          {"kernel", entry.kernel},
          {"threads", entry.threads},
          {"seconds", entry.seconds},
          {"default_kernel", entry.default_kernel},
          {"default_seconds", entry.default_seconds}};
}

}  // namespace

std::string_view no_tables_reason() { return {}; }

TuningFile parse_tuning(std::string_view text_of_file) {
  const json document = json::parse(text_of_file, nullptr, false);
  if (document.is_discarded()) return {.fault = "not JSON, or cut off"};
  if (!document.is_object() || document.value("kind", json()) != "cadre tune") {
    return {.fault = "not a file of cadre tune"};
  }
  const json schema = document.value("schema", json());
  if (schema != kTuningSchema) {
    return {.fault = text("schema = ", schema.dump(), ", expected ", kTuningSchema)};
  }
  const auto entries = document.find("entries");
  if (entries == document.end() || !entries->is_array()) return {.fault = "no list of entries"};
  TuningFile file;
  for (size_t i = 0; i < entries->size(); ++i) {
    const json& one = (*entries)[i];
    if (!one.is_object()) return {.fault = text("entry ", i, " is no object")};
    if (one.value("kernels", json()) != kTuningKernels) {
      ++file.outdated;
      continue;
    }
    EntryReader reader(one);
    TuningEntry entry = entry_of(reader);
    if (!reader.fault().empty()) return {.fault = text("entry ", i, ": ", reader.fault())};
    file.entries.push_back(std::move(entry));
  }
  return file;
}

std::string tuning_text(const std::vector<TuningEntry>& entries) {
  std::string lines;
  for (const TuningEntry& entry : entries) {
    lines += text(lines.empty() ? "\n  " : ",\n  ", json_of(entry).dump());
  }
  return text("{\n \"kind\": \"cadre tune\",\n \"schema\": ", kTuningSchema, ",\n \"entries\": [",
              lines, "\n ]\n}\n");
}

#endif

TuningFile read_tuning(const std::string& path, bool* exists) {
  constexpr std::streamsize kMostBytes = 64 << 20;
  std::ifstream file(path, std::ios::binary);
  *exists = static_cast<bool>(file) || errno != ENOENT;
  if (!file) {
    if (*exists) return {.fault = std::strerror(errno)};
    return {};
  }
  std::string content;
  char part[1 << 16];
  while (file.read(part, sizeof(part)) || file.gcount() > 0) {
    content.append(part, static_cast<size_t>(file.gcount()));
    if (static_cast<std::streamsize>(content.size()) > kMostBytes) {
      return {.fault = text("more than ", kMostBytes, " bytes")};
    }
  }
  return parse_tuning(content);
}

}  // namespace cadre::backend
