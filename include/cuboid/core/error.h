// Errors as part of the product: one exception type, its kind, and a collector that reports every reason at once.
// Not here: printing and exit codes as process behaviour (launch does that).
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace cuboid {

/// What went wrong, as the command line's exit status distinguishes it.
enum class ErrorKind {
  request,   ///< the request is wrong (flag, config, input file); nothing was started. Exit 2.
  failed,    ///< a run failed (a rank died, disk full). Exit 3.
  deadline,  ///< a wait for another rank passed its deadline. Exit 4.
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  /// The process exit status of this kind: 2, 3 or 4.
  int exit_status() const { return kind_ == ErrorKind::request ? 2 : kind_ == ErrorKind::failed ? 3 : 4; }

 private:
  ErrorKind kind_;
};

/// Collects the reasons why a request cannot be met, so that all are reported together.
class Problems {
 public:
  void add(std::string reason) { reasons_.push_back(std::move(reason)); }
  void add_if(bool bad, std::string reason) {
    if (bad) add(std::move(reason));
  }
  bool empty() const { return reasons_.empty(); }
  const std::vector<std::string>& reasons() const { return reasons_; }
  /// Throws Error{request} with one reason a line; does nothing without reasons.
  void throw_if_any() const;

 private:
  std::vector<std::string> reasons_;
};

/// Runs a look at an input whose faults are thrown, and keeps those of the request, so that later looks still report
/// theirs.
template <typename Look>
void collect(Problems& problems, Look&& look) {
  try {
    look();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::request) throw;
    problems.add(error.what());
  }
}

/// Checks a programming contract (a bug in the caller, not a user's mistake); throws std::logic_error naming it.
[[noreturn]] void contract_violation(const char* expression, const char* file, int line, const std::string& detail);

}  // namespace cuboid

/// CUBOID_CHECK(cond, "text"): a contract between modules. On in every build type: the cost is nil beside a kernel.
#define CUBOID_CHECK(condition, detail)                                                       \
  do {                                                                                        \
    if (!(condition)) ::cuboid::contract_violation(#condition, __FILE__, __LINE__, (detail)); \
  } while (false)
