// The processor: its name, instruction sets and caches.
#include <fmt/core.h>

#include <fstream>
#include <thread>

#include "cpu/threads.h"
#include "machine.h"

namespace cadre::cli {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
  }
  return "unknown";
}

std::vector<std::string> feature_names() {
  std::vector<std::string> names;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const auto add = [&names](const char* name, bool present) {
    if (present) names.emplace_back(name);
  };
  add("sse4.2", __builtin_cpu_supports("sse4.2"));
  add("avx2", __builtin_cpu_supports("avx2"));
  add("fma", __builtin_cpu_supports("fma"));
  add("avx512f", __builtin_cpu_supports("avx512f"));
  add("avx512bw", __builtin_cpu_supports("avx512bw"));
  add("avx512vl", __builtin_cpu_supports("avx512vl"));
  add("avx512vnni", __builtin_cpu_supports("avx512vnni"));
#endif
  // Newer than the compiler's list: the kernel's names for them.
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("flags", 0) != 0) continue;
    line += ' ';
    for (const char* name :
         {"f16c", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"}) {
      if (line.find(fmt::format(" {} ", name)) != std::string::npos) names.emplace_back(name);
    }
    break;
  }
  return names;
}

/// "48K", "2048K", "32M"
int64_t parse_size(const std::string& text) {
  if (text.empty()) return 0;
  const int64_t value = std::atoll(text.c_str());
  if (text.back() == 'K') return value << 10;
  if (text.back() == 'M') return value << 20;
  return value;
}

std::vector<CpuCache> cache_list() {
  std::vector<CpuCache> caches;
  for (int index = 0;; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    const std::string level = first_line(folder + "level");
    if (level.empty()) return caches;
    caches.push_back({std::atoi(level.c_str()), first_line(folder + "type"),
                      parse_size(first_line(folder + "size"))});
  }
}

}  // namespace

CpuInfo cpu_info() {
  return {.model = model_name(),
          .logical_cpus = static_cast<int>(std::thread::hardware_concurrency()),
          .threads = cpu::default_thread_count(),
          .features = feature_names(),
          .caches = cache_list()};
}

}  // namespace cadre::cli
