// Sorts and filters the tables of a plan's page, which is complete without this script. The page is XML: use no less-than sign and no ampersand here.
document.querySelectorAll('table.sortable').forEach(function(table){
  table.querySelectorAll('th').forEach(function(head,column){
    var up=false;
    head.addEventListener('click',function(){
      var body=table.tBodies[0],rows=Array.from(body.rows);up=!up;
      var key=function(row){var cell=row.cells[column];return cell.dataset.v===undefined?cell.textContent:Number(cell.dataset.v);};
      rows.sort(function(a,b){var x=key(a),y=key(b),order=typeof x==='number'?x-y:String(x).localeCompare(String(y));return up?order:-order;});
      rows.forEach(function(row){body.appendChild(row);});
    });
  });
});
var filter=document.getElementById('filter');
if(filter){filter.addEventListener('input',function(){
  var wanted=filter.value.toLowerCase();
  document.querySelectorAll('#tensors tbody tr').forEach(function(row){row.hidden=!row.textContent.toLowerCase().includes(wanted);});
});}
