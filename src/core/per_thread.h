// A value for each thread, made when the thread first asks for it and destroyed with the thread.
#pragma once

#include <pthread.h>

#include <new>

namespace cadre {

/// Unlike a thread_local, for which the C library ends the process when memory is short, it can be
/// refused. Objects of this type are static and never destroyed: threads may outlive them.
template <class T>
class PerThread {
 public:
  PerThread() : has_key_(pthread_key_create(&key_, destroy) == 0) {}

  /// Null when there is no memory.
  T* get() {
    if (!has_key_) return nullptr;
    if (void* const found = pthread_getspecific(key_)) return static_cast<T*>(found);
    T* const made = new (std::nothrow) T;
    if (made == nullptr || pthread_setspecific(key_, made) == 0) return made;
    delete made;
    return nullptr;
  }

 private:
  static void destroy(void* value) { delete static_cast<T*>(value); }

  pthread_key_t key_{};
  bool has_key_;
};

}  // namespace cadre
