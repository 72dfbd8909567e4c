// Libraries of NVIDIA that are loaded when something of them is first called, so that the program starts without them.
#pragma once

#include <span>
#include <string>

#include <dlfcn.h>

#include "cuboid/core/error.h"

namespace cuboid::cuda {

/// The first of `names` that loads. @throws Error{failed} with `missing` if none does
inline void* load_library(std::span<const char* const> names, const char* missing) {
  for (const char* name : names) {
    if (void* const found = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return found;
  }
  throw Error(ErrorKind::failed, missing);
}

/// @param library_name  for the message  @throws Error{failed} if the library has no such function
template <typename Function>
Function* function_of(void* library, const char* library_name, const char* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) throw Error(ErrorKind::failed, std::string(library_name) + " has no function " + name);
  return reinterpret_cast<Function*>(found);
}

}  // namespace cuboid::cuda
