#include "cuboid/core/log.h"

#include <atomic>
#include <mutex>
#include <string>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace cuboid::log {
namespace {

std::mutex g_line;
std::atomic<bool> g_quiet = false;
void (*g_before)() = nullptr;
void (*g_after)() = nullptr;

spdlog::logger& logger() {
  static auto instance = [] {
    auto made = std::make_shared<spdlog::logger>("cuboid", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

// Every line of a message carries the prefix, so that a list of reasons stays greppable.
void print(std::string_view prefix, std::string_view message) {
  const std::scoped_lock lock(g_line);
  if (g_before) g_before();
  while (true) {
    const auto end = message.find('\n');
    logger().info("{}{}", prefix, message.substr(0, end));
    if (end == std::string_view::npos) break;
    message.remove_prefix(end + 1);
  }
  if (g_after) g_after();
}

}  // namespace

void info(std::string_view message) {
  if (!g_quiet) print("cuboid: ", message);
}
void warning(std::string_view message) {
  print("cuboid: warning: ", message);
}
void error(std::string_view message) {
  print("cuboid: error: ", message);
}
void set_quiet(bool quiet) {
  g_quiet = quiet;
}
void set_interrupt(void (*before)(), void (*after)()) {
  const std::scoped_lock lock(g_line);
  g_before = before;
  g_after = after;
}

}  // namespace cuboid::log
