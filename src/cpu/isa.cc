// Detection by the compiler's cpuid support, and for AMX by asking the kernel for the tile
// registers.
#include "cpu/isa.h"

#include <string>

#include "core/text.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace cadre::cpu {
namespace {

constexpr Isa kAll[] = {Isa::kScalar,     Isa::kAvx2,       Isa::kAvx512,
                        Isa::kAvx512Vnni, Isa::kAvx512Bf16, Isa::kAmx};

bool built(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
#if defined(CADRE_HAVE_AVX2)
      return true;
#else
      return false;
#endif
    case Isa::kAvx512:
#if defined(CADRE_HAVE_AVX512)
      return true;
#else
      return false;
#endif
    case Isa::kAvx512Vnni:
#if defined(CADRE_HAVE_AVX512_VNNI)
      return true;
#else
      return false;
#endif
    case Isa::kAvx512Bf16:
#if defined(CADRE_HAVE_AVX512_BF16)
      return true;
#else
      return false;
#endif
    case Isa::kAmx:
#if defined(CADRE_HAVE_AMX)
      return true;
#else
      return false;
#endif
  }
  return false;
}

#if defined(__x86_64__)
/// AMX_TILE, AMX_BF16 and AMX_INT8 in the processor, and the kernel's leave to use the 8 KiB of
/// tile registers, which Linux grants to a process on request (arch_prctl, ARCH_REQ_XCOMP_PERM,
/// feature 18).
bool has_amx() {
#if defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;
  constexpr unsigned kNeeded = kAmxBf16 | kAmxTile | kAmxInt8;
  if ((d & kNeeded) != kNeeded) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

/// Asked by hand: clang 14's __builtin_cpu_supports doesn't know the name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29)) != 0;
}

bool present(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    case Isa::kAvx512Vnni:
      return __builtin_cpu_supports("avx512vnni");
    case Isa::kAvx512Bf16:
      return __builtin_cpu_supports("avx512bf16");
    case Isa::kAmx:
      return has_amx();
  }
  return false;
}
#else
bool present(Isa isa) { return isa == Isa::kScalar; }
#endif

std::vector<Isa> detect() {
  std::vector<Isa> found;
  for (const Isa isa : kAll) {
    if (!built(isa) || !present(isa)) break;  // each needs all before it
    found.push_back(isa);
  }
  return found;
}

}  // namespace

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512_vnni";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

bool has_vbmi() {
#if defined(CADRE_HAVE_AVX512_FP8)
  return __builtin_cpu_supports("avx512vbmi") != 0;
#else
  return false;
#endif
}

const std::vector<Isa>& available_isas() {
  static const std::vector<Isa> kFound = detect();
  return kFound;
}

Status resolve_isa(std::string_view name, Isa* isa) {
  const std::vector<Isa>& available = available_isas();
  *isa = available.back();
  if (name.empty()) return {};
  for (const Isa candidate : available) {
    if (name_of(candidate) == name) {
      *isa = candidate;
      return {};
    }
  }
  std::string list;
  for (const Isa candidate : available) list += text(list.empty() ? "" : ", ", name_of(candidate));
  return Status::invalid(
      text("context: isa = \"", name,
           "\" (option isa or CADRE_ISA), expected one that this machine has: ", list));
}

}  // namespace cadre::cpu
