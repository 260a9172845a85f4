# Defaults of a build: build type, ccache, warnings, sanitizers. A parent project's choices are left alone.

# Nobody wants unoptimised kernels by accident. This variable holds for cadre's own folders: a parent project that sets no
# build type stays without one, and one that sets a build type, or -O by hand, gets what it asked for.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND NOT CMAKE_CXX_FLAGS MATCHES "-O")
  set(CMAKE_BUILD_TYPE Release)
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

  find_program(CADRE_CCACHE ccache)
  mark_as_advanced(CADRE_CCACHE)
  if(CADRE_CCACHE)
    # Paths relative to the source folder, so that every clone and work tree shares the cache.
    set(launcher "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "${CADRE_CCACHE}")
    foreach(language IN ITEMS C CXX CUDA)
      if(NOT DEFINED CMAKE_${language}_COMPILER_LAUNCHER)
        set(CMAKE_${language}_COMPILER_LAUNCHER "${launcher}")
      endif()
    endforeach()
  endif()

  if(CADRE_SANITIZE)
    add_compile_options(-fsanitize=${CADRE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${CADRE_SANITIZE})
    # A third of the compile time, for what AddressSanitizer reports as soon as memory is touched.
    if(CADRE_SANITIZE MATCHES "address" AND CADRE_SANITIZE MATCHES "undefined")
      add_compile_options(-fno-sanitize=null,object-size,vptr)
    endif()
  endif()
endif()

# The warnings for our own code. -Wconversion is there for one bug above all: a 64-bit offset squeezed into 32 bits.
set(CADRE_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
                   -Woverloaded-virtual -Wundef -Wvla)
if(CADRE_WERROR)
  list(APPEND CADRE_WARNINGS -Werror)
endif()

# Hardening of what is loaded into other people's processes: addresses of functions can't be overwritten once the loader
# is done, overflowing buffers on the stack and in calls of libc are caught. Sanitizers see more than that by themselves.
# bindings/python/cadre/_shims.py compiles the shims with the same flags.
set(CADRE_HARDEN_COMPILE -fstack-protector-strong
  $<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-U_FORTIFY_SOURCE> $<$<CONFIG:Release,RelWithDebInfo,MinSizeRel>:-D_FORTIFY_SOURCE=2>)
set(CADRE_HARDEN_LINK LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
# cadre_harden(target): for libcadre.so's objects and link, and for the shims.
function(cadre_harden target)
  if(NOT CADRE_SANITIZE)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${CADRE_HARDEN_COMPILE}>")
    target_link_options(${target} PRIVATE ${CADRE_HARDEN_LINK})
  endif()
endfunction()

# cadre_compile_settings(target): language level and warnings that every target of ours gets. Contraction of a*b+c is
# off so that a sum has the same bits wherever the compiler happens to inline it; kernels ask for fma by name.
function(cadre_compile_settings target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    CUDA_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${CADRE_WARNINGS}>"
    $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
endfunction()
