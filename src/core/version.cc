// The version the library was built as.
#include "cadre/version.h"

namespace cadre {

const char* version() noexcept { return CADRE_VERSION_STRING; }

}  // namespace cadre
