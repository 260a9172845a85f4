// The result of every call: no exception leaves the library, nothing is printed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "cadre/export.h"

namespace cadre {

/// The three kinds of failure. The values are part of the C ABI (`cadre_status_code`).
enum class StatusCode : int32_t {
  kOk = 0,
  kInvalid = 1,      ///< the caller's fault; the message names op, argument, expected and received
  kUnsupported = 2,  ///< no backend takes this problem; the message lists every refusal
  kInternal = 3,     ///< out of memory, a failed launch, a defect
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status invalid(std::string message) { return {StatusCode::kInvalid, std::move(message)}; }
  static Status unsupported(std::string message) {
    return {StatusCode::kUnsupported, std::move(message)};
  }
  static Status internal(std::string message) {
    return {StatusCode::kInternal, std::move(message)};
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  /// Empty when ok.
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace cadre
