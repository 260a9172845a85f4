// The version has one source: header and library agree.
#include "cadre/version.h"

#include <gtest/gtest.h>

#include <string>

namespace {

TEST(Version, HeaderAndLibraryAgree) {
  EXPECT_STREQ(cadre::version(), CADRE_VERSION_STRING);
  EXPECT_EQ(std::string(CADRE_VERSION_STRING), std::to_string(CADRE_VERSION_MAJOR) + "." +
                                                   std::to_string(CADRE_VERSION_MINOR) + "." +
                                                   std::to_string(CADRE_VERSION_PATCH));
}

}  // namespace
