// A user's program, compiled against an installed or embedded cadre.
#include <cadre/version.h>

#include <cstdio>
#include <cstring>

int main() {
  std::printf("cadre %s\n", cadre::version());
  return std::strcmp(cadre::version(), CADRE_VERSION_STRING) == 0 ? 0 : 1;
}
