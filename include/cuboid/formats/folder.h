// What a folder of data holds.
#pragma once

#include <string>
#include <vector>

namespace cuboid {

/// Regular files beneath a folder in ascending path order, hidden files and folders skipped.
/// @throws Error{request} if it cannot be listed
std::vector<std::string> files_beneath(const std::string& folder);

}  // namespace cuboid
