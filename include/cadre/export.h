// CADRE_API marks what the shared library exports; everything else stays hidden.
#ifndef CADRE_EXPORT_H_
#define CADRE_EXPORT_H_

#if defined(_WIN32)
#define CADRE_API
#else
#define CADRE_API __attribute__((visibility("default")))
#endif

#endif  // CADRE_EXPORT_H_
