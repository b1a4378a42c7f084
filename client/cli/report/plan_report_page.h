// The files of the page that plan_report.cc fills. The build embeds each file without its first
// line, which says what the file is.
#ifndef SHARDMESH_CLIENT_CLI_REPORT_PLAN_REPORT_PAGE_H_
#define SHARDMESH_CLIENT_CLI_REPORT_PLAN_REPORT_PAGE_H_

#include <string_view>

namespace shardmesh::client {

extern const std::string_view kPlanReportHtml;    // plan_report.html
extern const std::string_view kPlanReportStyle;   // plan_report.css
extern const std::string_view kPlanReportScript;  // plan_report.js

}  // namespace shardmesh::client

#endif  // SHARDMESH_CLIENT_CLI_REPORT_PLAN_REPORT_PAGE_H_
