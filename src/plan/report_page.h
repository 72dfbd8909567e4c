// The page of a report, with a place for its data. Private to plan.
#pragma once

namespace cuboid::plan {

extern const char* const kReportPage;
/// What in the page the data takes the place of.
inline constexpr const char* kReportData = "@CUBOID_REPORT_DATA@";

}  // namespace cuboid::plan
