// ContextState: the settings of a Context, resolved once, and what backends attach to it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cadre/context.h"

namespace cadre::detail {

class ContextState {
 public:
  /// Whatever a backend keeps for this Context (workspaces, handles); destroyed with it.
  struct Attachment {
    virtual ~Attachment() = default;
  };

  Status status;  ///< not ok: an option could not be honoured, and every call returns this
  int32_t num_threads = 1;
  std::string isa;      ///< empty: the best here
  std::string backend;  ///< empty: the first that takes the problem
  int32_t sm_count = 0;
  bool tuned = false;      ///< measurements decide between kernels of the same bits
  std::string tune_cache;  ///< the user's file of these; empty: there is none

  /// The attachment of `owner`, made by `make` at the first call. Thread-safe.
  template <typename Make>
  Attachment& attachment(const void* owner, Make make) const {
    const std::scoped_lock lock(mutex_);
    std::unique_ptr<Attachment>& slot = attachments_[owner];
    if (!slot) slot = make();
    return *slot;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::map<const void*, std::unique_ptr<Attachment>> attachments_;
};

}  // namespace cadre::detail
