#include "cuboid/core/error.h"

#include <algorithm>

namespace cuboid {

void Problems::throw_if_any() const {
  if (reasons_.empty()) return;
  std::string all;
  for (auto reason = reasons_.begin(); reason != reasons_.end(); ++reason) {
    // Two checks of one thing may find the same.
    if (std::find(reasons_.begin(), reason, *reason) == reason) all += (all.empty() ? "" : "\n") + *reason;
  }
  throw Error(ErrorKind::request, all);
}

void contract_violation(const char* expression, const char* file, int line, const std::string& detail) {
  throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": contract " + expression + ": " + detail);
}

}  // namespace cuboid
