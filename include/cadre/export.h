/* CADRE_API marks what the shared library exports; everything else in it is hidden. Pure C. */
#ifndef CADRE_EXPORT_H_
#define CADRE_EXPORT_H_

#if defined(__GNUC__)
#define CADRE_API __attribute__((visibility("default")))
#else
#define CADRE_API
#endif

#endif /* CADRE_EXPORT_H_ */
